"""From a Runner and the model that it is to test to the record of the test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.errors import UserError
from mmcalib.files import (
    RESULTS,
    STATISTICS,
    experiment_name,
    file_name_for_split,
    whole_file,
    without_nan,
)
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_figures
from mmcalib.openmmlab.metrics import CalibrationMetric, OODMetric
from mmcalib.openmmlab.metrics.kept_statistics import kept_statistics
from mmcalib.openmmlab.same_data import data_content, split_images
from mmcalib.openmmlab.splits import OWN_TEST_LOADER, tested_split
from mmcalib.predictions.boundary import RANGE_NAMES
from mmcalib.runs.checkpoint import class_names
from mmcalib.runs.config_tree import type_name
from mmcalib.runs.facts import DATASET_KEYS, describe_dataset, plain, plain_pipelines
from mmcalib.runs.labelled_classes import LabelledClassesHook, unlabelled_classes
from mmcalib.runs.model import PredictingModel
from mmcalib.runs.record import CONTENT, Record, checkpoint_paths, fitted_splits
from mmcalib.runs.run_config import PIPELINES_BEFORE_VIEWS
from mmcalib.runs.runner import load_weights, tell_hooks
from mmcalib.runs.summary import measuring_command, summary_lines
from mmcalib.texts import command_text
from mmcalib.version import __version__

# The file that the ReliabilityDiagramHook leaves of a test, in the folder of the log.
DIAGRAM = 'vis_data/vis_image/reliability_diagram_{}_0.png'
# The fields of the toolboxes' data samples that hold labels.
LABEL_FIELDS = ('gt_label', 'gt_score', 'gt_sem_seg')
# Attributes that a record has of a metric, for all tests and for those of a part.
METRIC_OPTIONS = ('protocol', 'num_bins', 'ignore_index')
OOD_OPTIONS = ('prefix', 'scores', 'ood_index', 'counts')


def load_and_test(runner: Runner, model: PredictingModel) -> dict:
    """Load the weights and test: the last two steps of every test, also of a training's.

    Returns:
        The metrics.
    """
    load_weights(runner.model, model.checkpoints, tested_classes(runner))
    return run_test(runner, model)


def tested_classes(runner: Runner) -> list[str]:
    """Return the classes of a Runner's test data, which are built for it."""
    return class_names(runner.test_loop.dataloader.dataset)


def run_test(runner: Runner, model: PredictingModel, *, shift: Mapping | None = None) -> dict:
    """Test, and leave the files that later tools read in the work dir.

    These are ``results.json`` with the :class:`~mmcalib.runs.record.Record`, and
    ``calibration.npz`` with the statistics of the ``CalibrationMetric``; see
    :func:`~mmcalib.openmmlab.metrics.kept_statistics.kept_statistics` for more than one. For the
    split ``'val'`` their names end in ``_val``. The record is written last: where it is, the others
    belong to it.

    Args:
        runner: Runner with a test split, whose model has its weights.
        model: Model that is tested.
        shift: Description of the shift of the data, None for none.

    Returns:
        The metrics.

    Raises:
        UserError: If a metric needs labels, and the data have none.
    """
    tell_hooks(runner, model.checkpoints)
    fitted_images = count_fitted_images(runner, model)
    try:
        metrics = runner.test()
    except KeyError as error:
        if error.args and error.args[0] in LABEL_FIELDS:
            raise UserError(
                f'a metric needs labels, and the tested data have no {error.args[0]}: give data '
                f'with labels, or predict images without labels by {command_text("predict")}'
            ) from error
        raise
    hooks = [hook for hook in runner.hooks if isinstance(hook, LabelledClassesHook)]
    labels = hooks[0].all_labels()
    if not is_main_process():
        return metrics
    calibration_metrics = metrics_of_type(runner, CalibrationMetric)
    num_samples = len(runner.test_dataloader.dataset)
    statistics = kept_statistics(calibration_metrics, num_samples)
    evaluation = describe_evaluation(runner)
    if shift:
        evaluation['shift'] = dict(shift)
    record = Record(
        experiment=experiment_name(runner.cfg.filename),
        split=tested_split(runner),
        model=model.description,
        evaluation=evaluation,
        metrics=metrics,
        strata=stratum_tables(statistics),
        rates=rate_tables(statistics, tested_classes(runner)),
        fitted_images=fitted_images,
        date=datetime.now(timezone.utc).isoformat(timespec='microseconds'),
        version=__version__,
    )
    write_results(Path(runner.work_dir), record, statistics)
    lines = summary_lines(record, statistics.get('calibration'))
    if calibration_metrics and not statistics:
        lines.append(
            f'The test_evaluator measures parts of the {num_samples:,} samples, whose figures are '
            f'above by its names: for a gap and {STATISTICS} of all samples, leave its type out.'
        )
    elif not statistics and 'ood' not in record.evaluation:
        command = measuring_command(runner.cfg.filename, record)
        lines.append(f'Calibration was not measured; {command} measures it.')
    if not record.limit:
        lines += unlabelled_classes(labels, tested_classes(runner))
    lines += file_lines(runner, record)
    print_log('\n'.join(['', *lines]), logger='current')
    return metrics


def metrics_of_type(runner: Runner, kind: type[BaseMetric]) -> list:
    """Return the metrics of a type of a Runner's test."""
    return [metric for metric in runner.test_evaluator.metrics if isinstance(metric, kind)]


def write_results(
    work_dir: Path, record: Record, statistics: Mapping[str, CalibrationStatistics]
) -> None:
    """Write statistics, then the record; files of an earlier test are removed first."""
    results = work_dir / file_name_for_split(RESULTS, record.split)
    results.unlink(missing_ok=True)
    (work_dir / file_name_for_split(STATISTICS, record.split)).unlink(missing_ok=True)
    for name, metric_statistics in statistics.items():
        with whole_file(work_dir / file_name_for_split(f'{name}.npz', record.split)) as temporary:
            metric_statistics.save(temporary)
    record.write(results)


def file_lines(runner: Runner, record: Record) -> list[str]:
    """Return the lines of a test's end that name its files."""
    files = {
        'checkpoint': ', '.join(checkpoint_paths(record.model)),
        'results': Path(runner.work_dir, file_name_for_split(RESULTS, record.split)),
    }
    diagram = Path(runner.log_dir, DIAGRAM.format(record.split))
    if diagram.is_file():
        files['diagram'] = diagram
    return [f'{name:<12}{file}' for name, file in files.items()]


def count_fitted_images(runner: Runner, model: PredictingModel) -> int | None:
    """Return how many tested images a scaling was fitted to, and warn of them; None if unknown.

    The figures of these images are too good. The data of the fit are the tested ones if they have
    the content that the checkpoint tells, else those of the config's split of the fit's name.

    Args:
        runner: Runner of the test.
        model: Model that is tested.
    """
    splits = fitted_splits(model.description)
    if not splits:
        return 0
    dataset = runner.test_loop.dataloader.dataset
    cfg = {f'{split}_dataloader': runner.cfg.get(f'{split}_dataloader') for split in splits}
    cfg['tested_dataloader'] = runner.cfg.test_dataloader
    if 'test' in splits and tested_split(runner) != 'test':
        cfg['test_dataloader'] = runner.cfg[OWN_TEST_LOADER]
    datasets = {'tested': dataset}
    tested = split_images(cfg, 'tested', datasets)
    fitted = set()
    if data_content(dataset) in model.fitted_contents:
        fitted = tested
    else:
        for split in splits:
            images = split_images(cfg, split, datasets)
            if images is None:
                return None
            fitted |= images & tested
    if fitted:
        is_all = len(fitted) == len(tested)
        images = 'these' if is_all else f'{len(fitted):,} of these {len(tested):,}'
        print_log(
            f'The scaling of the checkpoint was fitted on {images} images, so the figures are '
            'better than on others, and results.json and reports say so: test on others, or quote '
            'what calibrate.py prints if it cross-fits',
            'current',
            logging.WARNING,
        )
    return len(fitted)


def describe_evaluation(runner: Runner) -> dict:
    """Return the data and the options of an evaluation, for JSON.

    Returns:
        ``dataset`` (type, split and number of samples), ``data_options`` (its other options, such
        as noise), ``pipeline`` (its transforms), ``inference`` (``test_cfg`` of the model, left
        out where the whole image is predicted at once), ``tta``, whether the config's own model
        averages views, ``limit`` of a smoke run, ``content_digest`` of the samples if it is known,
        and the options of the metric; ``other_metrics`` has those of metrics with other options
        than the first, ``ood`` the ``prefix``, ``scores``, ``ood_index`` and ``counts`` of each
        ``OODMetric``.
    """
    cfg = runner.cfg
    data = describe_dataset(cfg.test_dataloader.dataset)
    dataset = {key: data[key] for key in DATASET_KEYS if key in data}
    dataset['samples'] = len(runner.test_dataloader.dataset)
    model_type = type_name(cfg.model['type'])
    evaluation = {
        'dataset': dataset,
        'data_options': {key: value for key, value in data.items() if key not in DATASET_KEYS},
        'pipeline': cfg.get(PIPELINES_BEFORE_VIEWS) or plain_pipelines(cfg, 'test'),
        'tta': 'module' in cfg.model and model_type != 'MeanProbabilityModel',
        'limit': cfg.get('limit'),
        **describe_metrics(metrics_of_type(runner, CalibrationMetric)),
    }
    content = data_content(runner.test_dataloader.dataset)
    if content is not None:
        evaluation[CONTENT] = content
    inference = plain(cfg.model.get('module', cfg.model).get('test_cfg') or {})
    if inference and inference != {'mode': 'whole'}:
        evaluation['inference'] = inference
    for metric in metrics_of_type(runner, OODMetric):
        if metric.num_samples == dataset['samples']:  # Others have the counts of a part.
            options = {name: getattr(metric, name) for name in OOD_OPTIONS}
            evaluation.setdefault('ood', []).append(options)
    return evaluation


def describe_metrics(metrics: Sequence[CalibrationMetric]) -> dict:
    """Return the options of the first metric, and under ``other_metrics`` those that differ."""
    metrics = [metric for metric in metrics if metric.prefix == 'calibration']
    if not metrics:
        return {}
    first_options = metric_options(metrics[0])
    other_metrics = {}
    for metric in metrics:
        options = metric_options(metric)
        if options != first_options:
            other_metrics |= dict.fromkeys(metric.metrics, options)
    if not other_metrics:
        return first_options
    return {**first_options, 'other_metrics': other_metrics}


def metric_options(metric: CalibrationMetric) -> dict:
    """Return the options of a metric that decide about its values."""
    options = {name: getattr(metric, name) for name in METRIC_OPTIONS}
    if metric.protocol == 'boundary':
        options['boundary_width'] = metric.boundary_width
    return options


def stratum_tables(statistics: Mapping[str, CalibrationStatistics]) -> dict:
    """Return the calibration of each class, and at each distance, that a test has measured.

    Args:
        statistics: Result of
            :func:`~mmcalib.openmmlab.metrics.kept_statistics.kept_statistics`.

    Returns:
        ``per_class`` and ``per_distance``, each with tables by the name of the file of statistics
        that has their bins, mostly ``calibration``; nothing where none was asked for. A table has
        the lists ``classes`` or ``pixels``, ``ECE``, ``accuracy``, ``confidence`` and ``count``.
        None stands for a stratum without predictions.
    """
    strata: dict[str, dict] = {}
    for name, metric_statistics in statistics.items():
        if metric_statistics.class_bins is not None:
            columns = without_nan(stratum_figures(metric_statistics.class_bins))
            tables = strata.setdefault('per_class', {})
            tables[name] = {'classes': metric_statistics.classes, **columns}
        if metric_statistics.distance_bins is not None:
            columns = without_nan(stratum_figures(metric_statistics.distance_bins))
            tables = strata.setdefault('per_distance', {})
            tables[name] = {'pixels': list(RANGE_NAMES), **columns}
    return strata


def rate_tables(
    statistics: Mapping[str, CalibrationStatistics], classes: Sequence[str]
) -> dict[str, dict]:
    """Return the mean probability and the frequency of each class, where they are known.

    Args:
        statistics: See :func:`stratum_tables`.
        classes: Names of the classes of the data.

    Returns:
        By the name of the file of statistics the lists ``classes``, ``probs``, ``frequencies`` and
        ``standard_errors``, which are of each of several labels if ``are_of_labels``. None stands
        for what is not known.
    """
    tables = {}
    for name, metric_statistics in statistics.items():
        rates = metric_statistics.class_rates()
        if rates is not None:
            num_classes = len(rates.probs)
            names = classes if len(classes) == num_classes else range(num_classes)
            tables[name] = {'classes': [*names], **without_nan(asdict(rates))}
    return tables
