"""From the arguments of tools/test_robustness.py to a record of each model on each test set."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from copy import deepcopy
from itertools import compress, product
from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import track

from mmcalib import __version__
from mmcalib.cli.arguments import MeanOptions
from mmcalib.cli.files import find_checkpoint
from mmcalib.cli.parser import ToolParser
from mmcalib.commands.test_robustness.test_sets import Shift, plan_shifts, set_loader
from mmcalib.errors import UserError
from mmcalib.files import RESULTS
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.reports.formats import robustness_table
from mmcalib.reports.metric_columns import CLEAN, headline_text
from mmcalib.reports.shifts import shift_description
from mmcalib.reports.tested_runs import read_runs
from mmcalib.runs.checkpoint import class_difference, read_checkpoint
from mmcalib.runs.checks import build_data, check_run
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import plain
from mmcalib.runs.evaluation import run_test, tested_classes
from mmcalib.runs.labels import model_label
from mmcalib.runs.model import Network, TestedModel, model_folder_name, prepare_model
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.record import Record, digest
from mmcalib.runs.run_config import set_test, set_work_dir
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.weights import load_weights
from mmcalib.runs.work_dir import locked

METRICS = ('ECE', 'AECE', 'NLL', 'AUGRC')
# Hooks that would draw or log each of many tests.
SILENT = ('ConfidenceMapHook', 'LoggerHook', 'ReliabilityDiagramHook', 'VisualizationHook')


def run(parser: ToolParser, args: argparse.Namespace) -> None:
    """Test models on clean and on shifted data."""
    with parser.ending_with_errors('Stopped: the same call goes on where it was.'):
        cfg = load_config(args.config, args.cfg_options)
        cfg.launcher = args.launcher
        set_work_dir(cfg, args.work_dir, limit=args.limit)
        set_test(cfg, split=args.split, evaluation=args.evaluation)
        if not args.work_dir:
            cfg.work_dir = str(Path(cfg.work_dir, 'robustness'))
        set_loader(cfg, args)
        checkpoints = [read_checkpoint(find_checkpoint(text)) for text in args.checkpoints]
        alone = MeanOptions(members=())
        tested = [prepare_model(cfg, [Network(cfg, each)], alone) for each in checkpoints]
        runner = build_runner(cfg)
        build_data(runner, ['test'])
        check_run(runner, ['test'])
        shifts = plan_shifts(cfg, args)
        _compare_few_metrics(runner)
        runner._hooks = [hook for hook in runner.hooks if not type(hook).__name__.endswith(SILENT)]
        log_start(runner, ('test',))
        with locked(cfg.work_dir, first=is_main_process()):
            _test_all(runner, shifts, tested)
    if is_main_process():
        names = [model_folder_name(model.description) for model in tested]
        folders = [Path(cfg.work_dir, name, CLEAN) for name in names]
        found = [next(read_runs(folder / RESULTS)) for folder in folders]
        print(robustness_table(found))
        if any(shift.kind == 'corruption' for shift in shifts):
            how = 'Images of the' if args.stored else 'Corrupted by'
            print(f'{how} {shift_description(found[0].tests)}.')
        print(f'Files: {cfg.work_dir}')
    leave_processes()


def _compare_few_metrics(runner: Runner) -> None:
    """Have a test measure what is compared, by the protocol of the config's first metric."""
    evaluator = runner._test_evaluator = runner.test_evaluator  # of every loop that is built
    metrics = evaluator.metrics
    ours = [metric for metric in metrics if isinstance(metric, CalibrationMetric)]
    first = next((metric for metric in ours if metric.prefix == 'calibration'), None)
    names = ('protocol', 'num_bins', 'ignore_index', 'boundary_width')
    options = {name: getattr(first, name) for name in names} if first else {}
    metric = CalibrationMetric(list(METRICS), **options)
    metric.dataset_meta = runner.test_dataloader.dataset.metainfo
    evaluator.metrics = [*(each for each in metrics if each not in ours), metric]


def _test_all(runner: Runner, shifts: list[Shift], tested: list[TestedModel]) -> None:
    """Leave a record of each model and test set, unless it is there."""
    classes = tested_classes(runner)
    corruptions = [shift for shift in shifts if shift.kind == 'corruption']
    for shift in (each for each in shifts if each not in corruptions[1:]):  # of one data set
        _use(runner, shift)
        build_data(runner, ['test'])
        check_run(runner, ['test'])
        if shift.kind == 'data' and (found := tested_classes(runner)) != classes:
            wrong = class_difference(classes, found)
            raise UserError(f'--data {shift.name} has other classes: {wrong}')
    for handler in runner.logger.handlers:
        if not isinstance(handler, logging.FileHandler):  # which has what single tests say
            handler.setLevel(logging.ERROR)
    plan = [
        (model, shift, Path(runner.work_dir, model_folder_name(model.description), shift.folder))
        for model, shift in product(tested, shifts)
    ]
    left = [[not _is_done(folder, _of(runner, shift)) for *_, shift, folder in plan]]
    broadcast_object_list(left)  # of the first process, which alone writes files
    plan = [*compress(plan, left[0])]
    loaded, screen = None, Console(quiet=not is_main_process(), stderr=True)
    if finished := len(tested) * len(shifts) - len(plan):
        screen.print(f'{finished} tests are finished already.')
    for model, shift, folder in track(plan, 'Testing', console=screen):
        if model is not loaded:
            load_weights(runner.model, model.checkpoints, classes)
            loaded = model
        _use(runner, shift)
        runner._work_dir = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        metrics = run_test(runner, model, shift=_of(runner, shift))
        named = model_label(model.description, experiment=Path(runner.cfg.filename).stem)
        screen.print(f'{named}, {shift.text}: {headline_text(metrics)}')


def _use(runner: Runner, shift: Shift) -> None:
    """Have the runner's next test take the data of a shift."""
    runner._test_dataloader = deepcopy(shift.loader)
    runner.cfg.test_dataloader = deepcopy(shift.loader)  # which the record describes
    runner._test_loop = deepcopy(runner.cfg.test_cfg)


def _of(runner: Runner, shift: Shift) -> dict:
    """Return what a record says of its shift; with equal ones a test gives the same figures."""
    cfg = runner.cfg
    parts = [shift.loader['dataset'], cfg.test_evaluator, cfg.test_cfg, cfg.get('limit')]
    return {**shift.described, 'digest': digest([plain(parts), __version__])}


def _is_done(folder: Path, shift: Mapping) -> bool:
    """Return whether the folder of a model and a shift has a test that gives the same figures."""
    try:
        return Record.read(folder / RESULTS).evaluation.get('shift') == shift
    except (FileNotFoundError, ValueError):  # or cut off
        return False
