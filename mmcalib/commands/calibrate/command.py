"""The command ``calibrate``: the library's calibration, from a Runner to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmcalib.calibration.before_after import Effect, measure_effect
from mmcalib.calibration.calibrated import Calibrated, result
from mmcalib.calibration.cross_fit import Scalings, cross_fit, score_by_fit
from mmcalib.calibration.data_checks import check_determined, check_information
from mmcalib.calibration.draw import Draw
from mmcalib.calibration.find_layer import find_place
from mmcalib.calibration.fit import checked_batches, fit_scaling
from mmcalib.calibration.held_out import HeldOut, draw_held_out
from mmcalib.calibration.prove import Placement
from mmcalib.choices import AUTO
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.commands.calibrate.file_groups import check_places, groups_of_images
from mmcalib.commands.calibrate.refusals import (
    HELD_OUT,
    SAME_DATA,
    Forced,
    check_file,
    check_groups,
    check_held_out,
    check_not_calibrated,
    check_options,
    is_whole_test,
    make_scaler,
)
from mmcalib.commands.calibrate.sinks import CheckpointSink, MeanSink
from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import find_head
from mmcalib.openmmlab.hooks.head_options_hook import set_head_options
from mmcalib.openmmlab.runner_source import RunnerSource
from mmcalib.openmmlab.same_data import data_content, same_data
from mmcalib.posthoc.per_label import Scaler
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.runs.checkpoint import Checkpoint, class_names
from mmcalib.runs.checks import build_data, check_run
from mmcalib.runs.config import load_config
from mmcalib.runs.facts import DATASET_KEYS, describe_dataset
from mmcalib.runs.model import PredictingModel, prepare_model, read_networks
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.record import CONTENT
from mmcalib.runs.run_config import limit_samples, set_loader_defaults, set_work_dir
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.weights import load_weights, tell_hooks

# Predictions times logits, or times their square for a matrix: at most 30 s a fit on one core.
CHEAP = 1e8


@dataclass(frozen=True)
class Division:
    """The images that a scaling is fitted to, and those that it is measured on.

    Attributes:
        split: The split of the fit.
        is_whole_test: Whether these images are those of the test, and no others: then each is
            scored by a scaling that was fitted without its fold, however long this takes.
        tests: Whether the test split is measured besides.
    """

    split: str
    is_whole_test: bool
    tests: bool

    @property
    def splits(self) -> list[str]:
        """The split of the fit, and then the other one that is measured."""
        return [self.split, 'test'] if self.tests else [self.split]


def calibrate_model(options: CalibrateOptions) -> None:
    """Fit a scaling to the logits of a model, and write the calibrated model or the temperature.

    A scaling that a layer can absorb is folded: the file differs from the original in the tensors
    of that layer (nearly always a weight and a bias). Any other one is attached: the file also has
    the tensors ``calibration.*``, and a config beside it, of the same name, reads them. Either has
    the record of the calibration in ``meta['calibration']``; the JSON file of a mean is this
    record.

    The model runs once over the images of a classifier, and twice over maps, which are too large
    to be kept.
    """
    method = make_scaler(options)
    run = prepare(options)
    runner = build_runner(run.cfg)
    if options.writes_temperature:
        sink = MeanSink()
    else:
        check_not_calibrated(run.model.checkpoints[0], run.forced)
        config = load_config(options.members[0].config, options.cfg_options)
        sink = CheckpointSink(run.model.checkpoints[0], config)
    division = run.division
    splits = division.splits
    build_data(runner, splits)
    check_run(runner, splits)
    log_start(runner, splits)
    loaders = load_model_and_data(runner, splits, run.model.checkpoints)
    shared = check_held_out(runner.cfg, division.split, loaders, run.forced)
    if is_whole_test(shared):  # The configs may differ.
        division = Division(division.split, is_whole_test=True, tests=False)
    if division.is_whole_test:
        print_log(SAME_DATA.format(seed=options.seed), 'current')
    calibrated = calibrate_runner(runner, method, loaders, options, division, sink)
    if calibrated.scaler is not None and is_main_process():
        record = {
            **calibrated.to_dict(),
            **run_facts(runner, division, options),
            'shared': shared,
            'forced': run.forced.reasons,
        }
        if division.split == 'test':
            record['tested'] = record['fitted']
        sink.write(options.out, calibrated, record, run.model.description)
    runner.call_hook('after_run')
    if is_main_process():
        print_calibration(calibrated, options, run.forced.reasons)
    leave_processes(1 if calibrated.scaler is None else 0)


@dataclass(frozen=True)
class PreparedRun:
    """A calibration that can begin.

    Attributes:
        cfg: The config of the Runner.
        division: The images of the fit and of the measurement.
        model: The model and its description.
        forced: The reasons against it that ``--force`` allowed.
    """

    cfg: Config
    division: Division
    model: PredictingModel
    forced: Forced


def prepare(options: CalibrateOptions) -> PreparedRun:
    """Return the config, the division of the images and the model that the options ask for.

    Raises:
        UserError: For options that exclude one another, and images that are not held out.
    """
    check_options(options)
    load = partial(load_for_calibration, options=options)
    cfg = load(options.members[0].config)
    forced = Forced(options.force)
    division = divide_images(cfg, options, forced)
    model = prepare_model(
        cfg,
        read_networks(cfg, options.members, load),
        options,
        sorted(division.splits),
        always_mean=options.writes_temperature,
    )
    set_loader_defaults(cfg)
    if options.limit is not None:
        limit_samples(cfg, options.limit)
    return PreparedRun(cfg, division, model, forced)


def load_for_calibration(path: str, options: CalibrateOptions) -> Config:
    """Return a config as a calibration runs it."""
    cfg = load_config(path, options.cfg_options)
    cfg.launcher = options.launcher
    set_work_dir(cfg, options.work_dir, limit=options.limit)
    return cfg


def divide_images(cfg: Config, options: CalibrateOptions, forced: Forced) -> Division:
    """Return the images of the fit and of the measurement, as options and data decide.

    Raises:
        UserError: If the config lacks a split, or the fit is to test images and not forced.
    """
    is_test = options.split == 'test' or same_data(
        cfg.get('val_dataloader'), cfg.get('test_dataloader')
    )
    division = Division(options.split, is_whole_test=is_test, tests=options.test and not is_test)
    for split in division.splits:
        if cfg.get(f'{split}_dataloader') is None:
            raise UserError(f'the config has no {split}_dataloader')
    if options.split == 'test':
        forced.refuse('fitted on the test split', HELD_OUT)
    return division


def load_model_and_data(
    runner: Runner, splits: Sequence[str], checkpoints: Sequence[Checkpoint]
) -> dict[str, Iterable]:
    """Load the weights, and return the loaders by split, that of the fit first."""
    loaders = {split: getattr(runner, f'{split}_loop').dataloader for split in splits}
    check_places(loaders[splits[0]], splits[0])
    runner.call_hook('before_run')
    load_weights(runner.model, checkpoints, data_classes(loaders[splits[0]]))
    tell_hooks(runner, checkpoints)
    if is_model_wrapper(runner.model):  # Each process predicts its share of the images.
        runner.model = runner.model.module
    return loaders


def data_classes(loader: Iterable) -> Sequence[str]:
    """Return the names of the classes of a loader's data set."""
    return class_names(getattr(loader.dataset, 'metainfo', None))


def calibrate_runner(
    runner: Runner,
    method: str | LogitScaler | None,
    loaders: Mapping[str, Iterable],
    options: CalibrateOptions,
    division: Division,
    sink: CheckpointSink | MeanSink,
) -> Calibrated:
    """Calibrate the model of a Runner, prove what is to be written, and measure on the test split.

    Args:
        runner: The Runner, whose model has its weights.
        method: See :func:`mmcalib.calibrate`.
        loaders: The loaders of the split of the fit, and of the test split if there is one.
        options: The options of the command.
        division: The images of the fit and of the measurement.
        sink: The writer, which proves the calibrated model first.

    Raises:
        UserError: For data that determine no scaling, and if the calibrated model does not predict
            what it should.
    """
    loader = loaders[division.split]
    group_of_image = groups_of_images(loader.dataset, options.groups)
    if division.is_whole_test or method == AUTO:
        check_groups(group_of_image, options)
    source = split_source(runner, division.split, loader)
    if source.several_labels and options.class_prior is not None:
        raise UserError(
            '--class-prior is of the classes of one label, and this head predicts several: leave '
            'it out'
        )
    expect_placement(runner.model, source, method, options, sink)
    rows: list[ImagePredictions] = []
    with closing(source.read(runner.model, 'Reading logits')) as batches:
        checked = checked_batches(keep_rows(batches, rows), method, options.class_prior)
        data = draw_held_out(
            checked,
            source,
            groups=group_of_image,
            num_samples=options.samples,
            seed=options.seed,
        )
    check_determined(data)
    if options.limit is None:
        check_information(data)
    fitted = fit_scaling(data, method, options.class_prior)
    score = cross_fit if division.is_whole_test else cross_fit_if_cheap
    scalings = score(fitted.unshifted, data)
    placement = None
    if sink.has_model:
        placement = find_place(runner.model, fitted.scaler, data, source)
    if placement is not None:
        source.use_placement(placement)
        if placement.reason is not None:  # Perhaps only found on a later batch.
            check_file(options.config_beside, options)
        placement.difference = sink.prove(runner.model, source, fitted.scaler, placement)
    effect = measure_effect(
        rows or source.read(runner.model, 'Before and after'),
        scalings,
        data.groups.of_image,
        returned_scaler=fitted.scaler,
        threshold=source.threshold,
        num_bins=options.num_bins,
        gather=source.gather,
    )
    calibrated = result(data, fitted, scalings, effect, placement, num_bins=options.num_bins)
    calibrated.split = division.split
    calibrated.unlabelled = named_classes(calibrated.unlabelled, data_classes(loader))
    if division.tests:
        calibrated.effects['tested'] = effect_on_test(runner, loaders['test'], source, calibrated)
    return calibrated


def expect_placement(
    model: nn.Module,
    source: RunnerSource,
    method: str | LogitScaler | None,
    options: CalibrateOptions,
    sink: CheckpointSink | MeanSink,
) -> None:
    """Let a source read logits where the calibrated model will probably have them.

    Raises:
        UserError: If the method is not for such a head, or a file is in the way.
    """
    expected = Placement(reason='a mean is in no single model')
    if sink.has_model:
        shifts_prior = options.class_prior is not None
        expected = source.expected_placement(model, method, shifts_prior=shifts_prior)
        if expected.reason is not None or method == AUTO:
            check_file(options.config_beside, options)
    source.use_placement(expected)


def keep_rows(
    batches: Iterable[ImagePredictions], rows: list[ImagePredictions]
) -> Iterator[ImagePredictions]:
    """Yield batches, and keep those of rows, which are small: maps are read twice instead."""
    for batch in batches:
        if not batch.are_maps:
            rows.append(batch)
        yield batch


def cross_fit_if_cheap(scaler: Scaler | None, data: HeldOut) -> Scalings:
    """Cross-fit where this takes about a minute, and each fold leaves data that determine it."""
    if scaler is None or not is_cheap(scaler, data.draw):
        return score_by_fit(scaler)
    try:
        return cross_fit(scaler, data)
    except UserError:  # There may be one group, or a class in few groups, all of one fold.
        return score_by_fit(scaler)


def is_cheap(scaler: Scaler, draw: Draw) -> bool:
    """Return whether a scaling is fitted in seconds.

    It asks for sizes and not for times, since all processes have to agree.
    """
    num_predictions, num_logits = draw.logits.shape
    axes = max(scaler.learned.values()) if isinstance(scaler, LogitScaler) else 0
    return num_predictions * num_logits ** min(max(axes, 1), 2) <= CHEAP


def split_source(runner: Runner, split: str, loader: Iterable) -> RunnerSource:
    """Return a split as the source of a calibration, which counts the pixels that its test does."""
    metrics = getattr(runner, f'{split}_loop').evaluator.metrics
    ignore_index = set_head_options(runner.model, metrics)
    return RunnerSource(runner.model, loader, ignore_index=ignore_index)


def effect_on_test(
    runner: Runner, loader: Iterable, fitted: RunnerSource, calibrated: Calibrated
) -> Effect:
    """Return the metrics before and after on test images, which the scaling has not seen.

    They are without a shift to other frequencies of the classes, which these images do not have.
    """
    source = split_source(runner, 'test', loader)
    source.from_scores = fitted.from_scores
    return measure_effect(
        source.read(runner.model, 'Before and after, test'),
        score_by_fit(calibrated.unshifted),
        returned_scaler=calibrated.scaler,
        threshold=source.threshold,
        num_bins=calibrated.num_bins,
        gather=source.gather,
    )


def named_classes(indices: Sequence[int], classes: Sequence[str]) -> list:
    """Return the names of classes, or their numbers where the data have no names."""
    return [classes[index] if index < len(classes) else index for index in indices]


def run_facts(runner: Runner, division: Division, options: CalibrateOptions) -> dict:
    """Return what the record of a calibration has besides what the library knows."""
    data = describe_dataset(runner.cfg[f'{division.split}_dataloader'].dataset)
    dataset = {key: data[key] for key in DATASET_KEYS if key in data}
    loader = getattr(runner, f'{division.split}_loop').dataloader
    model = runner.model
    head = find_head(getattr(model, 'module', model))
    has_threshold = getattr(head, 'out_channels', None) == 1
    return {
        'split': division.split,
        'dataset': {**dataset, 'samples': len(loader.dataset)},
        CONTENT: data_content(loader.dataset),
        'limit': options.limit,
        'threshold': head.threshold if has_threshold else None,
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
    }


def print_calibration(
    calibrated: Calibrated, options: CalibrateOptions, forced: Sequence[str]
) -> None:
    """Print what a calibration did, and every reason not to use it."""
    print(calibrated)
    if calibrated.groups_are_runs and options.groups is not None:
        print(
            f'--groups {options.groups} names groups that are alike: give a pattern that joins '
            'those of one video, patient or flight.'
        )
    for reason in forced:
        print(f'Warning: {reason}.')
    if options.limit is not None:
        print(f'A SMOKE RUN with --limit {options.limit}: its figures mean little.')
    if calibrated.scaler is None:
        print(
            f'mmcalib calibrate: no scaling was chosen, so {options.out} was not written: use the '
            'model as it is',
            file=sys.stderr,
        )
    elif calibrated.attached and not options.writes_temperature:
        print('Test and run it with the config beside the checkpoint.')
        print(f'Written: {options.out} and {options.config_beside}')
    else:
        print(f'Written: {options.out}')
