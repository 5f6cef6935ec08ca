"""The command ``test``: from its options to the record of a test."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import nn

from mmcalib.cli.test import EvaluationOptions
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.launchers import is_first_process
from mmcalib.metrics.counts import MOST_CLASSES
from mmcalib.metrics.definitions import find_metric
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.openmmlab.heads import innermost_model, predicted_classes
from mmcalib.openmmlab.hooks import ReliabilityDiagramHook
from mmcalib.openmmlab.metrics import CalibrationMetric, ImageScoreMetric
from mmcalib.openmmlab.same_data import same_data
from mmcalib.runs.checks import build_data, check_amp, check_run
from mmcalib.runs.config_tree import find_toolbox
from mmcalib.runs.evaluation import load_and_test, metrics_of_type
from mmcalib.runs.model import model_folder_name, prepare_model, read_networks
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.run_config import limit_samples, load_test_config, show_predictions
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.work_dir import locked

# Metrics that --calibration adds for all heads, and the coverage of their intervals.
MEASURED_BY_OPTION = ('ECE', 'AECE', 'gap', 'NLL', 'Brier')
INTERVAL_COVERAGE = 0.95
TRAINING_DATA = (
    'The test data are the training data of the config, on which figures are too good: take others.'
)


def evaluate_model(options: EvaluationOptions) -> None:
    """Test a checkpoint or an ensemble, and leave its record in the work dir."""
    check_options(options)
    load = partial(config_for_test, options=options)
    cfg = load(options.members[0].config)
    networks = read_networks(cfg, options.members, load)
    disagreement = options.disagreement is not None
    model = prepare_model(cfg, networks, options, disagreement=disagreement)
    if options.work_dir is None:
        cfg.work_dir = str(Path(cfg.work_dir, model_folder_name(model.description)))
    tests_training_data = same_data(cfg.get('train_dataloader'), cfg.test_dataloader)
    limit_samples(cfg, options.limit)
    with locked(cfg.work_dir, first=is_first_process(options.launcher)):
        runner = build_runner(cfg)
        build_data(runner, ['test'])
        add_metrics(runner, options)
        check_run(runner, ['test'])
        log_start(runner, ['test'])
        if tests_training_data:
            print_log(TRAINING_DATA, 'current', logging.WARNING)
        load_and_test(runner, model)
    if is_main_process():
        written = [cfg.work_dir, options.out, options.disagreement]
        print(f'Files: {", ".join(path for path in written if path)}')
    leave_processes()


def check_options(options: EvaluationOptions) -> None:
    """Refuse what could not be written after hours, and options that exclude each other."""
    if options.out is not None:
        if Path(options.out).suffix not in ('.pkl', '.pickle'):
            raise UserError(f'--out {options.out}: predictions go to a .pkl file')
        check_writable(options.out)
    if options.has_views and options.show_dir is not None:
        raise UserError('--show-dir draws one view of an image: leave out --tta')
    if options.amp:
        check_amp()


def config_for_test(path: str, options: EvaluationOptions) -> Config:
    """Return a config as the options change it, but for a limit on its samples."""
    cfg = load_test_config(path, options)
    if options.amp:
        cfg.test_cfg.fp16 = True
    if options.show_dir is not None:
        show_predictions(cfg, options.show_dir)
    if options.calibration and not cfg.get('test_evaluator'):
        cfg.test_evaluator = []
    return cfg


def add_metrics(runner: Runner, options: EvaluationOptions) -> None:
    """Have a test measure, draw and write what the options ask for besides."""
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
    if options.out is not None:
        add_metric(runner, DumpResults(out_file_path=options.out))


def add_metric(runner: Runner, metric: BaseMetric) -> None:
    """Add a metric to the test of a Runner."""
    metric.dataset_meta = runner.test_dataloader.dataset.metainfo
    runner.test_evaluator.metrics.append(metric)


def metrics_for_head(model: nn.Module, protocol: str) -> list[str]:
    """Return the metrics of --calibration: of two classes, those of P(y = 1) too."""
    names = [*MEASURED_BY_OPTION]
    if PROTOCOLS[protocol].region is not None:
        return names  # Pixels that are chosen by their labels have other frequencies.
    num_classes = predicted_classes(innermost_model(model))
    if num_classes == 2:
        names.insert(0, 'ClasswiseECE')
    # Each image keeps the bins of so many classes; without them nothing tells what is chance.
    if num_classes is not None and num_classes <= MOST_CLASSES:
        names.append('rate_gap')
    return names


def measure_calibration(runner: Runner) -> None:
    """Measure and draw the calibration; a metric of the config keeps its options."""
    metrics = metrics_of_type(runner, CalibrationMetric)
    main_metrics = [metric for metric in metrics if metric.prefix == 'calibration']
    names = metrics_for_head(runner.model, main_metrics[0].protocol if main_metrics else 'pooled')
    if main_metrics:
        measured = {name for metric in main_metrics for name in metric.metrics}
        missing = [name for name in names if name not in measured]
        metric = main_metrics[0]
        metric.metrics += tuple(missing)
        metric.required |= {find_metric(name).required for name in missing} - {None}
        metric.confidence_interval = metric.confidence_interval or INTERVAL_COVERAGE
    else:
        add_metric(runner, CalibrationMetric(names, confidence_interval=INTERVAL_COVERAGE))
    if not any(isinstance(hook, ReliabilityDiagramHook) for hook in runner.hooks):
        runner.register_hook(ReliabilityDiagramHook(splits=['test']))


def count_objects(runner: Runner) -> None:
    """Count classes, and the objects of a segmentation, in the metrics of all pixels.

    Raises:
        UserError: If no metric is of all pixels.
    """
    metrics = metrics_of_type(runner, CalibrationMetric)
    pooled_metrics = [metric for metric in metrics if metric.protocol == 'pooled']
    if not pooled_metrics:
        raise UserError(
            '--objects requires a CalibrationMetric of all pixels, and the config has none: add '
            '--calibration'
        )
    for metric in pooled_metrics:
        metric.per_class = True
        metric.per_object = find_toolbox(runner.cfg) == 'mmseg'
