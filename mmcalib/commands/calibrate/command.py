"""The command ``calibrate``: the library's calibration, from a Runner to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmcalib.calibration.before_after import Effect, measure_effect
from mmcalib.calibration.calibrated import Calibrated, result
from mmcalib.calibration.cross_fit import Scalings, cross_fit, score_by_fit
from mmcalib.calibration.data_checks import check_determined, check_information, check_order
from mmcalib.calibration.draw import Draw
from mmcalib.calibration.find_layer import find_place
from mmcalib.calibration.fit import checked_batches, fit_scaling
from mmcalib.calibration.held_out import HeldOut, draw_held_out
from mmcalib.calibration.prove import Placement
from mmcalib.choices import AUTO
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.commands.calibrate.file_groups import check_places, groups_of_images
from mmcalib.commands.calibrate.plan import (
    Plan,
    check_file,
    check_groups,
    check_options,
    make_plan,
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
from mmcalib.runs.run_config import limit_samples, load_run_config, set_loader_defaults
from mmcalib.runs.runner import build_runner, load_weights, log_start, tell_hooks

# Predictions times logits, or times their square for a matrix: at most 30 s a fit on one core.
CHEAP = 1e8


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
    cfg, splits, model = prepare(options)
    runner = build_runner(cfg)
    sink = MeanSink()
    if not options.writes_temperature:
        config = load_config(options.members[0].config, options.cfg_options)
        sink = CheckpointSink(model.checkpoints[0], config)
    build_data(runner, splits)
    check_run(runner, splits)
    log_start(runner, splits)
    loaders = {split: getattr(runner, f'{split}_loop').dataloader for split in splits}
    datasets = {split: loader.dataset for split, loader in loaders.items()}
    plan = make_plan(runner.cfg, options, datasets, sink.checkpoint)
    load_model(runner, loaders[plan.split], model.checkpoints)
    calibrated = calibrate_runner(runner, method, loaders, options, plan, sink)
    if calibrated.scaler is not None and is_main_process():
        record = {
            **calibrated.to_dict(),
            **run_facts(runner, options),
            'shared': plan.shared,
            'forced': plan.forced,
        }
        if plan.split == 'test':
            record['tested'] = record['fitted']
        sink.write(options.out, calibrated, record, model.description)
    runner.call_hook('after_run')
    if is_main_process():
        print_calibration(calibrated, options, plan.forced)
    leave_processes(1 if calibrated.scaler is None else 0)


def prepare(options: CalibrateOptions) -> tuple[Config, list[str], PredictingModel]:
    """Return the config, the splits that are read, that of the fit first, and the model.

    Raises:
        UserError: For options that exclude one another, or if the config lacks a split.
    """
    check_options(options)
    load = partial(load_run_config, options=options)
    cfg = load(options.members[0].config)
    splits = [options.split]
    own_loader = cfg.get(f'{options.split}_dataloader')
    if options.test and not same_data(own_loader, cfg.get('test_dataloader')):
        splits.append('test')
    for split in splits:
        if cfg.get(f'{split}_dataloader') is None:
            raise UserError(f'the config has no {split}_dataloader')
    model = prepare_model(
        cfg,
        read_networks(cfg, options.members, load),
        options,
        sorted(splits),
        always_mean=options.writes_temperature,
    )
    set_loader_defaults(cfg)
    limit_samples(cfg, options.limit)
    return cfg, splits, model


def load_model(runner: Runner, loader: Iterable, checkpoints: Sequence[Checkpoint]) -> None:
    """Load the weights of a model whose classes are those of a loader."""
    runner.call_hook('before_run')
    load_weights(runner.model, checkpoints, class_names(loader.dataset))
    tell_hooks(runner, checkpoints)
    if is_model_wrapper(runner.model):  # Each process predicts its share of the images.
        runner.model = runner.model.module


def calibrate_runner(
    runner: Runner,
    method: str | LogitScaler | None,
    loaders: Mapping[str, Iterable],
    options: CalibrateOptions,
    plan: Plan,
    sink: CheckpointSink | MeanSink,
) -> Calibrated:
    """Calibrate the model of a Runner, prove what is to be written, and measure on the test split.

    Args:
        runner: The Runner, whose model has its weights.
        method: See :func:`mmcalib.calibrate`.
        loaders: The loaders of the split of the fit, and of the test split if there is one.
        options: The options of the command.
        plan: The images of the fit and of the measurement.
        sink: The writer, which proves the calibrated model first.

    Raises:
        UserError: For data that determine no scaling, and if the calibrated model does not predict
            what it should.
    """
    loader = loaders[plan.split]
    check_places(loader, plan.split)
    group_of_image = groups_of_images(loader.dataset, options.groups)
    if plan.is_whole_test or method == AUTO:
        check_groups(group_of_image, options)
    source = split_source(runner, plan.split, loader)
    check_prior(source, options)
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
    if options.limit is None:
        check_order(fitted.unshifted, data)
    score = cross_fit if plan.is_whole_test else cross_fit_if_cheap
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
    calibrated.split = plan.split
    name_classes(calibrated, class_names(loader.dataset))
    if plan.tests:
        calibrated.effects['tested'] = effect_on_test(runner, loaders['test'], source, calibrated)
    return calibrated


def check_prior(source: RunnerSource, options: CalibrateOptions) -> None:
    """Refuse frequencies of classes for a head that predicts several labels."""
    if source.several_labels and options.class_prior is not None:
        raise UserError(
            '--class-prior is of the classes of one label, and this head predicts several: leave '
            'it out'
        )


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


def name_classes(calibrated: Calibrated, classes: Sequence[str]) -> None:
    """Give the classes in the sentences of a calibration their names."""
    calibrated.unlabelled = named_classes(calibrated.unlabelled, classes)
    rates = calibrated.effects['fitted'].rates.get('before')
    if rates is not None and not rates.has_one_rate:
        calibrated.class_names = named_classes(range(len(rates.probs)), classes)


def named_classes(indices: Sequence[int], classes: Sequence[str]) -> list:
    """Return the names of classes, or their numbers where the data have no names."""
    return [classes[index] if index < len(classes) else index for index in indices]


def run_facts(runner: Runner, options: CalibrateOptions) -> dict:
    """Return what the record of a calibration has besides what the library knows."""
    data = describe_dataset(runner.cfg[f'{options.split}_dataloader'].dataset)
    dataset = {key: data[key] for key in DATASET_KEYS if key in data}
    loader = getattr(runner, f'{options.split}_loop').dataloader
    model = runner.model
    head = find_head(getattr(model, 'module', model))
    has_threshold = getattr(head, 'out_channels', None) == 1
    return {
        'split': options.split,
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
