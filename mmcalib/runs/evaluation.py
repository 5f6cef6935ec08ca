"""From a Runner whose model has its weights to the record of a test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.files import RESULTS, STATISTICS, experiment_name, file_name_for_split, whole_file
from mmcalib.metrics.strata import stratum_figures
from mmcalib.openmmlab.metrics import CalibrationMetric, OODMetric
from mmcalib.openmmlab.metrics.kept_statistics import kept_statistics
from mmcalib.openmmlab.same_data import build_if_there, same_data, sample_ids
from mmcalib.openmmlab.samples import read_field
from mmcalib.openmmlab.splits import tested_split
from mmcalib.predictions.boundary import RANGE_NAMES
from mmcalib.runs import model as models
from mmcalib.runs.checkpoint import Checkpoint, classes_of
from mmcalib.runs.config_tree import (
    DATASET_KEYS,
    describe_dataset,
    plain,
    plain_pipelines,
    type_name,
)
from mmcalib.runs.record import Record, checkpoint_paths
from mmcalib.runs.test_summary import measuring_command, test_summary, unlabelled_classes

# What the ReliabilityDiagramHook leaves of a test, in the folder of the log.
DIAGRAM = 'vis_data/vis_image/reliability_diagram_{}_0.png'


def classes_in(runner: Runner) -> list[str]:
    """Return the classes of a Runner's test data, which are there then, for hooks to look at."""
    return classes_of(runner.test_loop.dataloader.dataset)


def run_test(
    runner: Runner,
    model: dict,
    checkpoints: Sequence[Checkpoint],
    *,
    shift: Mapping | None = None,
) -> dict:
    """Test, and leave the files that later tools read in the work dir.

    That is ``results.json`` with the :class:`~mmcalib.runs.record.Record`, and ``calibration.npz``
    with what the ``CalibrationMetric`` has counted; see
    :func:`~mmcalib.openmmlab.metrics.kept_statistics.kept_statistics` for more than one. Of the
    split ``'val'`` their names end in ``_val``. The record is written last: where it is,
    the others are its own.

    Args:
        runner: Of a config with a test split, with the weights loaded.
        model: That is tested, see :func:`~mmcalib.runs.model.describe`.
        checkpoints: Of its members.
        shift: What the record says of the shift of the data; None for none.
    """
    models.tell_hooks(runner, checkpoints)
    _warn_of_fitted_images(runner, model)
    seen = LabelledClasses()
    runner.register_hook(seen)
    metrics = runner.test()
    runner.hooks.remove(seen)
    labels = set().union(*all_gather_object(seen.labels))
    if not is_main_process():
        return metrics
    split = tested_split(runner)
    ours = [m for m in runner.test_evaluator.metrics if isinstance(m, CalibrationMetric)]
    kept = kept_statistics(ours)
    record = Record(
        experiment=experiment_name(runner.cfg.filename),
        split=split,
        model=model,
        evaluation=evaluation(runner) | ({'shift': dict(shift)} if shift else {}),
        metrics=metrics,
        strata=strata(kept),
        date=datetime.now(timezone.utc).isoformat(timespec='microseconds'),
        version=__version__,
    )
    path = Path(runner.work_dir, file_name_for_split(RESULTS, split))
    for earlier in (path, path.with_name(file_name_for_split(STATISTICS, split))):
        earlier.unlink(missing_ok=True)
    for name, statistics in kept.items():
        with whole_file(path.with_name(file_name_for_split(f'{name}.npz', split))) as temporary:
            statistics.save(temporary)
    record.write(path)
    statistics = next((m.statistics for m in ours if m.prefix == 'calibration'), None)
    files = {'checkpoint': ', '.join(checkpoint_paths(model)), 'results': path}
    diagram = Path(runner.log_dir, DIAGRAM.format(split))
    files |= {'diagram': diagram} if diagram.is_file() else {}
    said = [
        *test_summary(record, statistics),
        *(f'{name:<12}{file}' for name, file in files.items()),
    ]
    if not kept and 'ood' not in record.evaluation:
        command = measuring_command(runner.cfg.filename, record)
        said.insert(-len(files), f'Calibration was not measured; {command} measures it.')
    if not record.limit:
        classes = classes_of(runner.test_loop.dataloader.dataset)
        said[-len(files) : -len(files)] = unlabelled_classes(labels, classes)
    print_log('\n'.join(['', *said]), logger='current')
    return metrics


class LabelledClasses(Hook):
    """Notes of which classes a test of a segmentor has labelled pixels.

    Attributes:
        labels: Those that were seen on this process; empty for a classifier.
    """

    def __init__(self) -> None:
        self.labels: set[int] = set()

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence = ()
    ) -> None:
        for sample in outputs:
            labels = read_field(sample, 'gt_sem_seg')
            if labels is not None and not labels.is_floating_point():
                counts = labels[labels >= 0].bincount()
                self.labels.update(counts.nonzero().flatten().tolist())


def _warn_of_fitted_images(runner: Runner, model: Mapping) -> None:
    """Warn of a scaling that is tested on images that it was fitted on.

    The data of the fit are those of the config's split of that name.
    """
    calibrations = [each['calibration'] for each in (*model['members'], model)]
    fitted = {calibration['split'] for calibration in calibrations if calibration}
    tested = runner.test_loop.dataloader.dataset
    keys = {sample.key for sample in sample_ids(tested)} if fitted else set()
    for split in fitted:
        loader = runner.cfg.get(f'{split}_dataloader')
        count = 0
        if same_data(loader, runner.cfg.test_dataloader):
            count = len(keys)
        elif loader and (dataset := build_if_there(runner.cfg, split)) is not None:
            count = len(keys & {sample.key for sample in sample_ids(dataset)})
        if count:
            whose = 'these' if count == len(keys) else f'{count:,} of these {len(keys):,}'
            print_log(
                f'The scaling of the checkpoint was fitted on {whose} images, so the figures are '
                'better than on others: test on others, or quote what calibrate.py prints if it '
                'cross-fits',
                'current',
                logging.WARNING,
            )


def evaluation(runner: Runner) -> dict:
    """Return the data and the options of an evaluation, for JSON.

    Returns:
        ``dataset`` (type, split and number of samples), ``data_options`` (its other options, such
        as noise), ``pipeline`` (its transforms), ``inference`` (``test_cfg`` of the model, left
        out where the whole image is predicted at once), ``tta``, whether the config's own model
        averages views, ``limit`` of a smoke run, and what the metric was told; ``other_metrics``
        has what was measured with other options than the first, ``ood`` the ``prefix``,
        ``scores``, ``ood_index`` and ``counts`` of each ``OODMetric``.
    """
    cfg, metrics = runner.cfg, runner.test_evaluator.metrics
    data = describe_dataset(cfg.test_dataloader.dataset)
    inference = plain(cfg.model.get('module', cfg.model).get('test_cfg') or {})
    ours = [metric for metric in metrics if isinstance(metric, CalibrationMetric)]
    ours = [(m.metrics, _metric_options(m)) for m in ours if m.prefix == 'calibration']
    first = ours[0][1] if ours else {}
    parts = ('prefix', 'scores', 'ood_index', 'counts')
    more = {
        'inference': inference if inference != {'mode': 'whole'} else None,
        'other_metrics': {name: told for names, told in ours if told != first for name in names},
        'ood': [{n: getattr(m, n) for n in parts} for m in metrics if isinstance(m, OODMetric)],
    }
    return {
        'dataset': {
            **{key: data[key] for key in DATASET_KEYS if key in data},
            'samples': len(runner.test_dataloader.dataset),
        },
        'data_options': {key: value for key, value in data.items() if key not in DATASET_KEYS},
        'pipeline': cfg.get(models.BEFORE_VIEWS) or plain_pipelines(cfg, 'test'),
        'tta': 'module' in cfg.model and type_name(cfg.model['type']) != 'MeanProbabilityModel',
        'limit': cfg.get('limit'),
        **first,
        **{key: value for key, value in more.items() if value},
    }


def _metric_options(metric: CalibrationMetric) -> dict:
    names = ['protocol', 'num_bins', 'ignore_index']
    names += ['boundary_width'] if metric.protocol == 'boundary' else []
    return {name: getattr(metric, name) for name in names}


def strata(kept: Mapping) -> dict:
    """Return the calibration of each class, and at each distance, that a test has measured.

    Args:
        kept: Of :func:`~mmcalib.openmmlab.metrics.kept_statistics.kept_statistics`.

    Returns:
        ``per_class`` and ``per_distance``, each with tables by the name of the file of statistics
        that has their bins, mostly ``calibration``; nothing where none was asked for. A table has
        the lists ``classes`` or ``pixels``, ``ECE``, ``accuracy``, ``confidence`` and ``count``.
        None stands for what nothing was predicted of.
    """
    found: dict[str, dict] = {}
    for name, statistics in kept.items():
        for key, bins, rows in (
            ('per_class', statistics.class_bins, {'classes': statistics.classes}),
            ('per_distance', statistics.distance_bins, {'pixels': list(RANGE_NAMES)}),
        ):
            for figure, values in stratum_figures(bins).items() if bins is not None else ():
                rows[figure] = [None if value != value else value for value in values]
                found.setdefault(key, {})[name] = rows
    return found
