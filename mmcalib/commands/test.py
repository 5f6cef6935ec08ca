"""The command ``test``: from its options to the record of a test."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.runner import Runner

from mmcalib.cli.test import TestOptions
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.metrics.definitions import find_metric
from mmcalib.openmmlab.heads import classes_of_head
from mmcalib.openmmlab.hooks import ReliabilityDiagramHook
from mmcalib.openmmlab.metrics import CalibrationMetric, ImageScoreMetric
from mmcalib.runs import config
from mmcalib.runs import model as models
from mmcalib.runs.checkpoint import Checkpoint
from mmcalib.runs.checks import check_amp, check_data, check_metrics, check_run, innermost
from mmcalib.runs.config_tree import find_toolbox
from mmcalib.runs.evaluation import classes_in, run_test
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.work_dir import locked

MEASURED_BY_OPTION = ('ECE', 'AECE', 'gap', 'NLL', 'Brier')  # by --calibration
COVERAGE = 0.95  # of the intervals


def test_model(options: TestOptions) -> None:
    """Test a checkpoint or an ensemble, and leave its record in the work dir."""
    cfg, model, checkpoints = prepare(options)
    check_data(cfg, ['test'])  # before there is a work dir
    runner = build_runner(cfg)
    check_run(runner, ['test'])
    add_metrics(runner, options)
    check_metrics('test', runner.test_loop, classes_of_head(innermost(runner.model)))
    log_start(runner, ('test',))
    models.load(runner.model, checkpoints, classes_in(runner))
    with locked(cfg.work_dir, first=is_main_process()):
        run_test(runner, model, checkpoints)
    if is_main_process():
        written = [cfg.work_dir, options.out, options.disagreement]
        print(f'Files: {", ".join(path for path in written if path)}')
    leave_processes()


test_model.__test__ = False  # pytest would take it for a test.


def prepare(options: TestOptions) -> tuple[Config, dict, list[Checkpoint]]:
    """Return config, model and checkpoints as the options ask for them."""
    if options.out:
        if not options.out.endswith(('.pkl', '.pickle')):
            raise UserError(f'--out {options.out}: predictions go to a .pkl file')
        check_writable(options.out)
    if options.has_views and options.show_dir:
        raise UserError('--show-dir draws one view of an image: leave out --tta')
    if options.amp:
        check_amp()

    load = partial(config.prepare, args=options)
    cfg = load(options.members[0].config)
    if options.amp:
        cfg.test_cfg.fp16 = True
    if options.show_dir:
        config.show_predictions(cfg, options.show_dir)
    if options.calibration and not cfg.get('test_evaluator'):
        cfg.test_evaluator = []
    configs, checkpoints = models.members_of(cfg, options.members, load)
    model = models.set_model(
        cfg,
        configs,
        checkpoints,
        tta=options.tta,
        tta_scales=options.tta_scales,
        mc_dropout=options.mc_dropout,
        dropout_seed=options.dropout_seed,
        temperature=options.temperature,
        disagreement=options.disagreement is not None,
    )
    if not options.work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, models.folder_of(model)))
    if options.limit is not None:
        config.limit_samples(cfg, options.limit)
    return cfg, model, checkpoints


def add_metrics(runner: Runner, options: TestOptions) -> None:
    """Have a test measure, draw and write what the options ask for besides.

    Raises:
        UserError: If objects are to be measured, and no metric is of all pixels.
    """
    if options.calibration:
        measure_calibration(runner)
    if options.objects:
        count_objects(runner)
    if options.disagreement is not None:
        metric = ImageScoreMetric(
            scores=['mutual_information'],
            prefix='disagreement',
            confidence_interval=None,
            out_file=os.path.join(options.disagreement, 'disagreement.csv'),
        )
        add_metric(runner, metric)
    if options.out:
        add_metric(runner, DumpResults(out_file_path=options.out))


def add_metric(runner: Runner, metric: BaseMetric) -> None:
    """Add a metric to the test of a Runner."""
    metric.dataset_meta = runner.test_dataloader.dataset.metainfo
    runner.test_evaluator.metrics.append(metric)


def measure_calibration(runner: Runner) -> None:
    """Measure and draw the calibration; a metric of the config keeps its options."""
    metrics = calibration_metrics(runner)
    main_metrics = [metric for metric in metrics if metric.prefix == 'calibration']
    if main_metrics:
        measured = {name for metric in main_metrics for name in metric.metrics}
        first = main_metrics[0]
        for name in MEASURED_BY_OPTION:
            if name in measured:
                continue
            first.metrics += (name,)
            if find_metric(name).required is not None:
                first.required.add(find_metric(name).required)
        first.confidence_interval = first.confidence_interval or COVERAGE
    else:
        add_metric(runner, CalibrationMetric(MEASURED_BY_OPTION, confidence_interval=COVERAGE))
    if not any(isinstance(hook, ReliabilityDiagramHook) for hook in runner.hooks):
        runner.register_hook(ReliabilityDiagramHook(splits=['test']))


def count_objects(runner: Runner) -> None:
    """Count classes, and the objects of a segmentation, in the metrics of all pixels."""
    metrics = [metric for metric in calibration_metrics(runner) if metric.protocol == 'pooled']
    if not metrics:
        raise UserError(
            '--objects requires a CalibrationMetric of all pixels, and the config has none: add '
            '--calibration'
        )
    for metric in metrics:
        metric.per_class = True
        metric.per_object = find_toolbox(runner.cfg) == 'mmseg'


def calibration_metrics(runner: Runner) -> list[CalibrationMetric]:
    """Return the calibration metrics of a Runner's test."""
    metrics = runner.test_evaluator.metrics
    return [metric for metric in metrics if isinstance(metric, CalibrationMetric)]
