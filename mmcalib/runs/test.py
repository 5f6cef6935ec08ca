"""From the arguments of tools/test.py to the record of a test."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from numbers import Real
from pathlib import Path
from shlex import quote

from mmengine.config import Config
from mmengine.dist import all_gather_object, is_main_process
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError
from mmcalib.files import RESULTS, STATISTICS, check_writable, experiment_name, of_split, whole_file
from mmcalib.metrics import CalibrationStatistics, keys
from mmcalib.metrics.calibration_errors import gap
from mmcalib.metrics.definitions import metric_of
from mmcalib.metrics.intervals import interval_values
from mmcalib.metrics.strata import stratum_figures
from mmcalib.openmmlab.heads import classes_of_head
from mmcalib.openmmlab.hooks import ReliabilityDiagramHook
from mmcalib.openmmlab.hooks.drawing_hooks import kept_statistics, tested_split
from mmcalib.openmmlab.metrics import CalibrationMetric, ImageScoreMetric, OODMetric
from mmcalib.openmmlab.same_data import build_if_there, same_data, sample_ids
from mmcalib.openmmlab.samples import tensor_of
from mmcalib.predictions.boundary import RANGE_NAMES
from mmcalib.runs import config
from mmcalib.runs import model as models
from mmcalib.runs.checkpoint import Checkpoint, classes_of
from mmcalib.runs.checks import check_amp, check_data, check_metrics, check_run, innermost
from mmcalib.runs.config_tree import (
    DATASET_KEYS,
    data_of,
    find_toolbox,
    pipelines_in,
    plain,
    type_name,
)
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.record import Record, is_ensemble, model_label, paths_of
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.work_dir import locked
from mmcalib.tables import TextTable
from mmcalib.texts import unlabelled_sentence

NO_VALUES = 'The test has no values, since no metric of test_evaluator has any.'
# What the ReliabilityDiagramHook leaves of a test, in the folder of the log.
DIAGRAM = 'vis_data/vis_image/reliability_diagram_{}_0.png'
# What a test with --calibration measures.
MEASURED = ('ECE', 'AECE', 'gap', 'NLL', 'Brier')


def run(parser: ToolParser, args: argparse.Namespace) -> None:
    """Test a checkpoint or an ensemble."""
    with parser.ending_with_errors():
        cfg, model, checkpoints = prepare(args)
        check_data(cfg, ['test'])  # before there is a work dir
        runner = build_runner(cfg)
        check_run(runner, ['test'])
        add_metrics(runner, args)
        check_metrics('test', runner.test_loop, classes_of_head(innermost(runner.model)))
        log_start(runner, ('test',))
        models.load(runner.model, checkpoints, classes_in(runner))
        with locked(cfg.work_dir, first=is_main_process()):
            run_test(runner, model, checkpoints)
    if is_main_process():
        print(f'Files: {", ".join(filter(None, [cfg.work_dir, args.out, args.disagreement]))}')
    leave_processes()


def prepare(args: argparse.Namespace) -> tuple[Config, dict, list[Checkpoint]]:
    """Return config, model and checkpoints as the arguments ask for them."""
    if args.out:
        if not args.out.endswith(('.pkl', '.pickle')):
            raise UserError(f'--out {args.out}: predictions go to a .pkl file')
        check_writable(args.out)
    if (args.tta or args.tta_scales is not None) and args.show_dir:
        raise UserError('--show-dir draws one view of an image: leave out --tta')
    if args.amp:
        check_amp()

    load = partial(config.prepare, args=args)
    cfg = load(args.members[0][0])
    if args.amp:
        cfg.test_cfg.fp16 = True
    if args.show_dir:
        config.show_predictions(cfg, args.show_dir)
    if args.calibration and not cfg.get('test_evaluator'):
        cfg.test_evaluator = []
    configs, checkpoints = models.members_of(cfg, args.members, load)
    model = models.set_model(
        cfg,
        configs,
        checkpoints,
        tta=args.tta,
        tta_scales=args.tta_scales,
        mc_dropout=args.mc_dropout,
        dropout_seed=args.dropout_seed,
        temperature=args.temperature,
        disagreement=args.disagreement is not None,
    )
    if not args.work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, models.folder_of(model)))
    if args.limit is not None:
        config.limit_samples(cfg, args.limit)
    return cfg, model, checkpoints


def add_metrics(runner: Runner, args: argparse.Namespace) -> None:
    """Have a test measure, draw and write what the arguments ask for besides.

    Raises:
        UserError: If objects are to be measured, and no metric is of all pixels.
    """
    metrics, data = runner.test_evaluator.metrics, runner.test_dataloader.dataset

    def add(metric: BaseMetric) -> None:
        metric.dataset_meta = data.metainfo
        metrics.append(metric)

    ours = [m for m in metrics if isinstance(m, CalibrationMetric) and m.prefix == 'calibration']
    if args.calibration and not ours:
        add(CalibrationMetric(MEASURED, confidence_interval=0.95))
    elif args.calibration:  # the config's keeps its options, and has what it lacks
        measured = {name for metric in ours for name in metric.metrics}
        missing = [name for name in MEASURED if name not in measured]
        ours[0].metrics += tuple(missing)
        ours[0].required |= {metric_of(name).required for name in missing} - {None}
        ours[0].confidence_interval = ours[0].confidence_interval or 0.95
    if args.calibration and not any(isinstance(x, ReliabilityDiagramHook) for x in runner.hooks):
        runner.register_hook(ReliabilityDiagramHook(splits=['test']))
    if args.objects:
        pooled = [m for m in metrics if isinstance(m, CalibrationMetric) and m.protocol == 'pooled']
        if not pooled:
            raise UserError(
                '--objects requires a CalibrationMetric of all pixels, and the config has none: '
                'add --calibration'
            )
        for metric in pooled:
            metric.per_class = True
            metric.per_object = find_toolbox(runner.cfg) == 'mmseg'
    if args.disagreement is not None:
        file = os.path.join(args.disagreement, 'disagreement.csv')
        scores = dict(scores=['mutual_information'], confidence_interval=None, out_file=file)
        add(ImageScoreMetric(prefix='disagreement', **scores))
    if args.out:
        add(DumpResults(out_file_path=args.out))


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
    :func:`~mmcalib.openmmlab.hooks.drawing_hooks.kept_statistics` for more than one. Of the
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
    path = Path(runner.work_dir, of_split(RESULTS, split))
    for earlier in (path, path.with_name(of_split(STATISTICS, split))):
        earlier.unlink(missing_ok=True)
    for name, statistics in kept.items():
        with whole_file(path.with_name(of_split(f'{name}.npz', split))) as temporary:
            statistics.save(temporary)
    record.write(path)
    statistics = next((m.statistics for m in ours if m.prefix == 'calibration'), None)
    files = {'checkpoint': ', '.join(paths_of(model)), 'results': path}
    diagram = Path(runner.log_dir, DIAGRAM.format(split))
    files |= {'diagram': diagram} if diagram.is_file() else {}
    said = [*summary(record, statistics), *(f'{name:<12}{file}' for name, file in files.items())]
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
            labels = tensor_of(sample, 'gt_sem_seg')
            if labels is not None and not labels.is_floating_point():
                counts = labels[labels >= 0].bincount()
                self.labels.update(counts.nonzero().flatten().tolist())


def unlabelled_classes(labels: set[int], classes: Sequence[str]) -> list[str]:
    """Return sentences about the classes of a segmentor without a labelled pixel, mostly none.

    Args:
        labels: Those that masks hold, the ignored one among them; empty for a classifier.
        classes: Of the data.
    """
    absent = [name for number, name in enumerate(classes) if number not in labels]
    if not labels or not absent:
        return []
    sentences = [unlabelled_sentence(absent)]
    if len(classes) - len(absent) == 1 and len(labels) > 1:
        values = ', '.join(map(str, sorted(labels)))
        sentences.append(
            f'The masks hold {values}, and only one of these is a class: write 0 to '
            f'{len(classes) - 1} into them.'
        )
    return sentences


def summary(record: Record, statistics: CalibrationStatistics | None = None) -> list[str]:
    """Return the lines of a small table of a test's figures.

    Args:
        record: Of the test.
        statistics: Of the test's calibration metric; None if it had none.
    """
    metrics = dict(record.metrics)
    counted = statistics if statistics is not None and statistics.num_predictions else None
    if counted is not None and keys.GAP not in metrics:
        metrics |= measured_gap(counted)
    rows = {
        key: (key, number(key, value), '')
        for key, value in metrics.items()
        if not key.startswith(keys.PREFIX)
    }
    ends = {f'{key}{end}' for key in metrics for end in keys.INTERVAL}
    ours = {
        key: (keys.metric_name(key), number(key, value), _remark(metrics, key))
        for key, value in metrics.items()
        if key.startswith(keys.PREFIX) and key not in ends
    }
    if counted is not None:
        count, correct, confidence = counted.narrow_bins.sum(dim=1).tolist()
        if not any(key.startswith(keys.TOP1) for key in metrics):
            of_what = f'of {counted.num_predictions:,} predictions'
            ours.setdefault(keys.ACCURACY, ('accuracy', f'{100 * correct / count:.2f} %', of_what))
        ours.setdefault(keys.CONFIDENCE, ('', f'{100 * confidence / count:.2f} %', ''))
    if keys.ACCURACY in ours:
        _, value, remark = ours[keys.ACCURACY]
        # The accuracy of all predictions has a name of its own in both toolboxes.
        for key in (keys.TOP1, keys.AACC):
            if key in rows and rows[key][1] == value:
                rows[key] = (key, value, remark)
                ours.pop(keys.ACCURACY, None)
    if keys.CONFIDENCE in ours:
        _, *cells = ours[keys.CONFIDENCE]
        ours[keys.CONFIDENCE] = ('mean confidence', *cells)
    first = [key for key in (keys.ACCURACY, keys.CONFIDENCE, keys.GAP) if key in ours]
    rows |= {key: ours[key] for key in [*first, *ours]}
    rows = list(rows.values())
    if not rows:
        return [_heading(record), NO_VALUES]
    table = TextTable(headings=(), rows=rows, alignment='lrl')
    return [_heading(record), *table.write().splitlines()]


def measuring_command(config: str, record: Record) -> str:
    """Return the command that measures the calibration of a model that was tested without it."""
    paths = paths_of(record.model)
    if is_ensemble(record.model) or not Path(paths[0]).is_file():
        return 'the same command of tools/test.py with --calibration'
    files = ' '.join(quote(os.path.relpath(path)) for path in (config, *paths))
    split = '' if record.split == 'test' else f' --split {record.split}'
    return f'tools/test.py {files} --calibration{split}'


def _remark(metrics: Mapping, key: str) -> str:
    """Return the interval of a metric, and what that of a gap says; nothing without one."""
    if f'{key}{keys.INTERVAL[0]}' not in metrics:
        return ''
    low, high = (metrics[f'{key}{end}'] for end in keys.INTERVAL)
    text = f'interval {number(key, low).removesuffix(" %")} to {number(key, high)}'
    if key != keys.GAP:
        return text
    if low > 0:
        verdict = 'over-confident'
    elif high < 0:
        verdict = 'under-confident'
    else:
        verdict = 'not told from 0'
    return f'{verdict}; {text}'


def measured_gap(statistics: CalibrationStatistics) -> dict[str, float]:
    """Return the gap between confidence and accuracy, with its interval where images are known."""
    found = {keys.GAP: gap(statistics.narrow_bins).item()}
    if statistics.image_bins is None:
        return found
    bins = statistics.image_bins
    ends = interval_values(['gap'], bins, bins.new_zeros(len(bins), 2), coverage=0.95)
    return found | {f'{keys.PREFIX}{name}': end for name, end in ends.items()}


def _heading(record: Record) -> str:
    parts = [record.experiment, model_label(record.model, experiment='').strip()]
    samples = record.evaluation.get('dataset', {}).get('samples')
    parts.append(f'{record.split} split' + (f', {samples:,} samples' if samples else ''))
    if record.limit:
        of_what = '' if record.evaluation['limit'] else 'the checkpoint of a '
        parts.append(f'{of_what}SMOKE RUN with --limit {record.limit}')
    return '; '.join(filter(None, parts))


def number(key: str, value: object) -> str:
    """Return a metric's value with its unit."""
    if not isinstance(value, Real):
        return str(value)
    sign = '+' if key == keys.GAP and value >= 0 else ''
    return sign + keys.number_text(value, key) + (' %' if keys.is_percentage(key) else '')


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
    data = data_of(cfg.test_dataloader.dataset)
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
        'pipeline': cfg.get(models.BEFORE_VIEWS) or pipelines_in(cfg, 'test'),
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
        kept: Of :func:`~mmcalib.openmmlab.hooks.drawing_hooks.kept_statistics`.

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
