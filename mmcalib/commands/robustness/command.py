"""The command ``robustness``: from its options to a record of each model on each test set."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import track

from mmcalib.cli.robustness import RobustnessOptions
from mmcalib.commands.robustness.shifted_sets import ShiftedSet, plan_test_sets, set_test_loader
from mmcalib.errors import UserError
from mmcalib.files import RESULTS
from mmcalib.launchers import is_first_process
from mmcalib.members import Averaging, find_checkpoint
from mmcalib.metrics.metric_text import PREFIX
from mmcalib.openmmlab.hooks.head_options_hook import set_head_options
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.reports.formats import robustness_table
from mmcalib.reports.metric_columns import CLEAN, headline_text
from mmcalib.reports.reported_runs import read_runs
from mmcalib.reports.shifts import COMPARED_METRICS, shift_description
from mmcalib.runs.checkpoint import class_difference, read_checkpoint
from mmcalib.runs.checks import build_data, check_run
from mmcalib.runs.evaluation import metric_options, run_test, tested_classes
from mmcalib.runs.facts import plain
from mmcalib.runs.labels import model_label
from mmcalib.runs.model import Network, PredictingModel, model_folder_name, prepare_model
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.record import Record, digest
from mmcalib.runs.run_config import load_test_config
from mmcalib.runs.runner import build_runner, load_weights, log_start
from mmcalib.runs.work_dir import locked
from mmcalib.version import __version__

# These hooks would draw or log each of many tests.
SILENCED_HOOKS = (
    'ConfidenceMapHook',
    'LoggerHook',
    'ReliabilityDiagramHook',
    'VisualizationHook',
)


class ShiftTest(NamedTuple):
    """A model, the test set that it is tested on, and the folder for its record."""

    model: PredictingModel
    test_set: ShiftedSet
    folder: Path


def run_robustness(options: RobustnessOptions) -> None:
    """Test models on clean and on shifted data, and print a table for each."""
    cfg = load_test_config(options.config, options)
    if not options.work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, 'robustness'))
    set_test_loader(cfg, options)
    models = []
    for name in options.checkpoints:
        network = Network(cfg, read_checkpoint(find_checkpoint(name)))
        models.append(prepare_model(cfg, [network], Averaging(members=())))
    with locked(cfg.work_dir, first=is_first_process(options.launcher)):
        runner = build_runner(cfg)
        build_data(runner, ['test'])
        compare_few_metrics(runner)
        check_run(runner, ['test'])
        test_sets = plan_test_sets(cfg, options)
        runner._hooks = [
            hook for hook in runner.hooks if not type(hook).__name__.endswith(SILENCED_HOOKS)
        ]
        log_start(runner, ['test'])
        classes = tested_classes(runner)
        check_test_sets(runner, test_sets, classes)
        run_tests(runner, models, test_sets, classes)
    if is_main_process():
        print_tables(cfg.work_dir, models, test_sets, options)
    leave_processes()


def compare_few_metrics(runner: Runner) -> None:
    """Replace the calibration metrics by the compared ones, with the options of the main metric."""
    evaluator = runner.test_evaluator
    runner._test_evaluator = evaluator  # Every test loop that is built takes it.
    set_head_options(runner.model, evaluator.metrics)
    kept_metrics = []
    kept_options = {}
    for metric in evaluator.metrics:
        if not isinstance(metric, CalibrationMetric):
            kept_metrics.append(metric)
        elif metric.prefix == 'calibration' and not kept_options:
            kept_options = metric_options(metric)
    names = [key.removeprefix(PREFIX) for key in COMPARED_METRICS if key.startswith(PREFIX)]
    metric = CalibrationMetric(names, **kept_options)
    metric.dataset_meta = runner.test_dataloader.dataset.metainfo
    evaluator.metrics = [*kept_metrics, metric]


def check_test_sets(
    runner: Runner, test_sets: Sequence[ShiftedSet], classes: Sequence[str]
) -> None:
    """Refuse test sets that cannot be tested before the first test, which saves hours.

    Corruptions are of one data set, so the first one is checked for all.
    """
    has_corruption = False
    for test_set in test_sets:
        if test_set.kind == 'corruption':
            if has_corruption:
                continue
            has_corruption = True
        use_test_set(runner, test_set)
        build_data(runner, ['test'])
        check_run(runner, ['test'])
        if test_set.kind == 'data' and tested_classes(runner) != classes:
            difference = class_difference(classes, tested_classes(runner))
            raise UserError(f'--data {test_set.name} has other classes: {difference}')


def use_test_set(runner: Runner, test_set: ShiftedSet) -> None:
    """Have the next test of a Runner take the data of a test set."""
    runner._test_dataloader = deepcopy(test_set.loader)
    runner.cfg.test_dataloader = deepcopy(test_set.loader)  # The record describes this one.
    runner._test_loop = deepcopy(runner.cfg.test_cfg)


def run_tests(
    runner: Runner,
    models: Sequence[PredictingModel],
    test_sets: Sequence[ShiftedSet],
    classes: Sequence[str],
) -> None:
    """Write a record of each model and test set, unless it exists."""
    for handler in runner.logger.handlers:
        if not isinstance(handler, logging.FileHandler):  # The file keeps the lines of each test.
            handler.setLevel(logging.ERROR)
    tests = unfinished_tests(runner, models, test_sets)
    console = Console(quiet=not is_main_process(), stderr=True)
    num_finished = len(models) * len(test_sets) - len(tests)
    if num_finished:
        console.print(f'{num_finished} tests are finished already.')
    loaded_model = None
    for model, test_set, folder in track(tests, 'Testing', console=console):
        if model is not loaded_model:
            load_weights(runner.model, model.checkpoints, classes)
            loaded_model = model
        use_test_set(runner, test_set)
        folder.mkdir(parents=True, exist_ok=True)
        runner._work_dir = str(folder)
        metrics = run_test(runner, model, shift=shift_record(runner, test_set))
        label = model_label(model.description, experiment=Path(runner.cfg.filename).stem)
        console.print(f'{label}, {test_set.text}: {headline_text(metrics)}')


def unfinished_tests(
    runner: Runner, models: Sequence[PredictingModel], test_sets: Sequence[ShiftedSet]
) -> list[ShiftTest]:
    """Return the tests that have no record yet, model by model, the same on all processes."""
    tests = []
    for model in models:
        model_folder = Path(runner.work_dir, model_folder_name(model.description))
        for test_set in test_sets:
            tests.append(ShiftTest(model, test_set, model_folder / test_set.folder_name))
    flags = [not is_finished(test.folder, shift_record(runner, test.test_set)) for test in tests]
    broadcast_object_list(flags)  # The first process alone writes files, so it decides.
    return [test for test, is_unfinished in zip(tests, flags, strict=True) if is_unfinished]


def shift_record(runner: Runner, test_set: ShiftedSet) -> dict:
    """Return what a record holds of its shift; tests with equal ones have the same metrics."""
    cfg = runner.cfg
    evaluation = [test_set.loader['dataset'], cfg.test_evaluator, cfg.test_cfg, cfg.get('limit')]
    return {**test_set.description, 'digest': digest([plain(evaluation), __version__])}


def is_finished(folder: Path, shift: Mapping) -> bool:
    """Return whether a folder has the record of a test under this shift."""
    try:
        record = Record.read(folder / RESULTS)
    except (FileNotFoundError, ValueError):  # A record that is cut off is a ValueError.
        return False
    return record.evaluation.get('shift') == shift


def print_tables(
    work_dir: str,
    models: Sequence[PredictingModel],
    test_sets: Sequence[ShiftedSet],
    options: RobustnessOptions,
) -> None:
    """Print the tests of each model, those of earlier calls among them."""
    runs = []
    for model in models:
        folder = Path(work_dir, model_folder_name(model.description), CLEAN)
        runs.append(next(read_runs(folder / RESULTS)))
    print(robustness_table(runs))
    if any(test_set.kind == 'corruption' for test_set in test_sets):
        start = 'Images of the' if options.stored else 'Corrupted by'
        print(f'{start} {shift_description(runs[0].tests)}.')
    print(f'Files: {work_dir}')
