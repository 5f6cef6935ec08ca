"""From a checkpoint and held-out data to a calibrated checkpoint: behind tools/calibrate.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from datetime import datetime
from math import isnan

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from mmcalib import __version__
from mmcalib.checks import UserError, check_choice, check_integer
from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.hooks.name_broken_samples_hook import name_samples
from mmcalib.metrics import CalibrationMetric
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import SCALERS, LogitScaler, TemperatureScaler
from mmcalib.posthoc.draw import NUM_SAMPLES, DrawnPredictions, draw_predictions
from mmcalib.posthoc.fold_into_layer import TOLERANCE
from mmcalib.runs.checkpoint_io import load_checkpoint
from mmcalib.runs.data_checks import check_run_data
from mmcalib.runs.evaluation_record import describe_dataset
from mmcalib.runs.terminal_output import log_start
from mmcalib.runs.training_record import CALIBRATION, finished_of
from mmcalib.tasks.calibrate.before_and_after import COMPARED_METRICS
from mmcalib.tasks.calibrate.calibration_checks import (
    check_not_calibrated,
    check_splits,
    config_beside,
)
from mmcalib.tasks.calibrate.choose_method import NONE, choose_method, methods_for
from mmcalib.tasks.calibrate.cross_fitting import fit_folds, folds_of_groups
from mmcalib.tasks.calibrate.image_groups import groups_of_images, independent_groups
from mmcalib.tasks.calibrate.placement import place_scaling
from mmcalib.work_dir import whole_file

SPLITS = ('val', 'test')


@dataclass
class CalibrationOptions:
    """The options of a calibration.

    Attributes:
        split: ``'val'`` or ``'test'``: which of the config's splits to fit on.
        test: Whether to measure before and after on the test split too.
        num_samples: How many predictions to draw for the fit.
        seed: Of the draw.
        num_bins: Of the ECE and AECE before and after.
        force: Whether to go on where the result may mislead.
        cross_fit: Whether the figures before and after are cross-fitted over the images of the
            split; see :mod:`mmcalib.tasks.calibrate.cross_fitting`.
        groups: Which images belong together; see
            :func:`~mmcalib.tasks.calibrate.image_groups.groups_of_images`.
    """

    split: str = 'val'
    test: bool = False
    num_samples: int = NUM_SAMPLES
    seed: int = 0
    num_bins: int = 15
    force: bool = False
    cross_fit: bool = False
    groups: str | None = None

    def __post_init__(self) -> None:
        check_choice('split', self.split, SPLITS)
        check_integer('num_samples', self.num_samples)
        check_integer('seed', self.seed, least=0)
        CalibrationMetric(COMPARED_METRICS, num_bins=self.num_bins)  # refuses wrong numbers


def calibrate_checkpoint(
    runner: Runner,
    scaler: LogitScaler | None,
    checkpoint: str,
    out: str,
    options: CalibrationOptions,
    *,
    config: Config,
) -> dict:
    """Fit a scaling to a model's logits, put it into the model and write a checkpoint.

    A scaling that a layer can absorb is folded: the file differs from the original in the tensors
    of that layer (nearly always a weight and a bias). Any other one is attached: the file also has
    the tensors ``calibration.*``, and a config beside it, of the same name, reads them. Either says
    in ``meta['calibration']`` the method, its parameters, what it was fitted on, and the numbers
    before and after.

    Args:
        runner: With the checkpoint as ``load_from``.
        scaler: Not fitted yet; None to choose a method by :func:`choose_method`.
        checkpoint: The file to read.
        out: The file to write.
        options: See :class:`CalibrationOptions`.
        config: Of the model, as a user would test it.

    Returns:
        What the checkpoint says of it under ``meta['calibration']``. If the choice fell on no
        scaling, nothing is written, and this is only ``method``, ``candidates`` and the images.

    Raises:
        ValueError: For what :mod:`~mmcalib.tasks.calibrate.calibration_checks` and
            :func:`~mmcalib.tasks.calibrate.placement.place_scaling` refuse; for data that determine
            no scaling; if the calibrated model, run, does not predict what it should.
    """
    forced = check_splits(runner.cfg, options)
    content = read_checkpoint(checkpoint)
    forced += check_not_calibrated(content['meta'], force=options.force)
    loaders = load_model_and_data(runner, options)
    model, loader = runner.model, loaders[options.split]

    # Before the long part: where can a scaling go?
    batch = next(iter(loader))
    state, candidates = content['state_dict'], None
    placement = place_scaling(model, scaler or TemperatureScaler(), state, batch)
    drawn, group_of = draw(runner, loader, options, of_samples=placement.of_samples)
    if scaler is None:
        chosen, candidates = choose(runner, drawn, group_of, options)
        if chosen == NONE:
            images = {'groups': int(group_of.max()) + 1, 'dataset': {'samples': drawn.num_images}}
            return {'method': NONE, 'candidates': candidates, **images}
        scaler = SCALERS[chosen]()
        placement = place_scaling(model, scaler, state, batch)
    fitted_on, folds, fold_of = fit_to_split(scaler, runner, options, drawn, group_of)
    results = {}
    for split, data in loaders.items():
        results[split] = placement.measure(
            data,
            scaler,
            folds,
            fold_of,
            num_bins=options.num_bins,
            ignore_index=ignore_index_of(model),
            text=f'Before and after, {split}',
        )
        _check_proof(results[split].difference)

    meta = {
        'method': scaler.method,
        'options': scaler.get_params(),
        **fitted_on,
        **placement.facts,
        'candidates': candidates,
        'threshold': _threshold(model),
        'fitted': asdict(results[options.split]),
        'tested': asdict(results['test']) if 'test' in results else None,
        'forced': forced,
        'checkpoint': os.path.basename(checkpoint),
        'finished': finished_of(content['meta'], checkpoint),
        **made_now(),
    }
    if CALIBRATION in content['meta']:
        meta['earlier'] = content['meta'][CALIBRATION]
    content['meta'][CALIBRATION] = meta
    placement.write(content, scaler)
    calibrated = placement.config(config, scaler) if placement.config else None
    if calibrated:
        _check_proof(placement.prove(calibrated, content, scaler, batch))
    if is_main_process():
        write_both(out, content, calibrated)
    runner.call_hook('after_run')
    return meta


def write_both(out: str, content: Mapping, config: Config | None) -> None:
    """Write a checkpoint and, if it needs one, its config: neither takes its place alone.

    Raises:
        UserError: If a file cannot be written: a full disk, say.
    """
    try:
        with (
            nullcontext() if config is None else whole_file(config_beside(out)) as beside,
            whole_file(out) as checkpoint,
        ):
            torch.save(content, checkpoint)
            if config is not None:
                config.dump(beside)
    except (OSError, RuntimeError) as error:  # the latter is PyTorch's word for a full disk
        raise UserError(
            f'--out {out} cannot be written; is the disk full? The files that were there are '
            f'unchanged: make room, or name a file on another disk ({error})',
            one_process=True,
        ) from error


def read_checkpoint(path: str) -> dict:
    """Return a checkpoint with its ``state_dict`` and ``meta``, which bare weights lack."""
    content = load_checkpoint(path)
    if 'state_dict' not in content:  # the bare weights, as of some model zoos
        content = {'state_dict': content}
    return {**content, 'meta': dict(content.get('meta') or {})}


def load_model_and_data(runner: Runner, options: CalibrationOptions) -> dict[str, Iterable]:
    """Load a Runner's weights as its own ``val`` and ``test`` do, and return loaders by split.

    First all loops, then ``before_run``, then the checkpoint: so hooks that compare a checkpoint
    with the data of the run see all of them.

    Raises:
        UserError: If a split is empty or cannot be read.
    """
    splits = dict.fromkeys([options.split, *(['test'] if options.test else [])])
    check_run_data(runner, splits, training=False)
    log_start(runner, tuple(splits))
    loops = {split: runner.val_loop if split == 'val' else runner.test_loop for split in splits}
    for loop in loops.values():
        name_samples(loop.dataloader.dataset)
    runner.call_hook('before_run')
    runner.load_or_resume()
    if is_model_wrapper(runner.model):  # each process predicts its share of the images
        runner.model = runner.model.module
    return {split: loop.dataloader for split, loop in loops.items()}


def draw(
    runner: Runner,
    loader: Iterable,
    options: CalibrationOptions,
    *,
    of_samples: bool = False,
) -> tuple[DrawnPredictions, Tensor]:
    """Draw predictions of a split to fit on, and find out what of it is independent.

    Returns:
        The predictions, whose ``images`` are numbers of groups, and the group of each image, see
        :func:`~mmcalib.tasks.calibrate.image_groups.independent_groups`.
    """
    drawn = draw_predictions(
        runner.model,
        loader,
        num_samples=options.num_samples,
        seed=options.seed,
        ignore_index=ignore_index_of(runner.model),
        of_samples=of_samples,
    )
    return independent_groups(drawn, groups_of_images(loader.dataset, options.groups))


def choose(
    runner: Runner, drawn: DrawnPredictions, group_of: Tensor, options: CalibrationOptions
) -> tuple[str, list[dict]]:
    """Choose a method by predictions of a split, see :func:`choose_method`."""
    pixels = hasattr(runner.model, 'decode_head')
    groups = int(group_of.max()) + 1
    methods = methods_for(drawn.logits.shape[1], groups=groups, pixels=pixels)
    return choose_method(drawn, folds_of_groups(groups, seed=options.seed), methods, pixels=pixels)


def fit_to_split(
    scaler: LogitScaler,
    runner: Runner,
    options: CalibrationOptions,
    drawn: DrawnPredictions,
    group_of: Tensor,
) -> tuple[dict, list[LogitScaler], Tensor | None]:
    """Fit a scaling to predictions drawn from a split.

    Returns:
        Its parameters and what they were fitted on; ``standard_error`` of a temperature, and the
        ``sampling_error`` that the draw adds. If cross-fitted, a scaler for each fold, and the
        fold of each image.
    """
    folds, fold_of, unfitted = [], None, deepcopy(scaler)
    drawn.fit(scaler)
    errors = _standard_errors(scaler, drawn)
    if options.cross_fit:
        fold_of_group = folds_of_groups(int(group_of.max()) + 1, seed=options.seed)
        folds, fold_of = fit_folds(unfitted, drawn, fold_of_group), fold_of_group[group_of]
    dataset = describe_dataset(runner.cfg[f'{options.split}_dataloader'].dataset)
    fitted_on = {
        'parameters': scaler.parameters,
        **errors,
        'split': options.split,
        'dataset': {**dataset, 'samples': drawn.num_images},
        'groups': int(group_of.max()) + 1,
        'num_predictions': drawn.population,
        'num_fitted': scaler.num_predictions_,
        'seed': options.seed,
        'num_bins': options.num_bins,
        'folds': len(folds),
    }
    return fitted_on, folds, fold_of


def made_now() -> dict[str, str]:
    """Return date and version, for the files of a calibration."""
    date = datetime.now().astimezone().isoformat(timespec='seconds')
    return {'date': date, 'version': __version__}


def ignore_index_of(model: nn.Module) -> int:
    """Return the label of the pixels that a model's loss leaves out, the first of a mean's."""
    member = model.module if isinstance(model, MeanProbabilityModel) else model
    index = getattr(head_of(member), 'ignore_index', None)
    return 255 if index is None else index


def _threshold(model: nn.Module) -> float | None:
    """Return above which probability a binary head predicts its class, None of another head."""
    head = head_of(model)
    return head.threshold if getattr(head, 'out_channels', None) == 1 else None


def _standard_errors(scaler: LogitScaler, drawn: DrawnPredictions) -> dict[str, float]:
    """Return the standard error of a temperature, and the part of it that is due to the draw."""
    if not isinstance(scaler, TemperatureScaler) or scaler.criterion != 'nll':
        return {}
    error = scaler.standard_error(drawn.logits, drawn.labels, drawn.images)
    if isnan(error):  # at its bound, or of one group
        return {}
    of_draw = scaler.standard_error(drawn.logits, drawn.labels)
    left_out = 1 - len(drawn.labels) / drawn.population
    return {
        'standard_error': error,
        'sampling_error': of_draw * left_out**0.5,
    }


def _check_proof(difference: float) -> None:
    """Raise a ValueError if a calibrated model does not predict what it should."""
    if not difference <= TOLERANCE:
        raise ValueError(
            f'the predictions of the calibrated model differ from the scaled ones by '
            f'{difference:.1e}: the head changes them after its last layer, or they are too large '
            'for single precision. Nothing was written'
        )
