"""From a checkpoint and held-out data to a calibrated one: behind tools/calibrate.py."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, is_main_process
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor

from mmcalib import __version__
from mmcalib.calibration.choose import NONE
from mmcalib.calibration.draw import DrawnPredictions, draw, joined
from mmcalib.calibration.effect import before_and_after
from mmcalib.calibration.fit import fit_scaling
from mmcalib.calibration.folds import FOLDS, independent_groups
from mmcalib.cli.arguments import MeanOptions
from mmcalib.cli.parser import ToolParser
from mmcalib.cli.processes import is_first_process
from mmcalib.errors import UserError
from mmcalib.files import check_writable, whole_file
from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.openmmlab.heads import head_of
from mmcalib.openmmlab.runner_source import predictions
from mmcalib.openmmlab.same_data import same_data
from mmcalib.options import check_integer
from mmcalib.posthoc import SCALERS, LogitScaler, TemperatureScaler
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint, class_names
from mmcalib.runs.checks import build_data, check_run
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import DATASET_KEYS, describe_dataset
from mmcalib.runs.model import prepare_model, read_networks
from mmcalib.runs.run_config import limit_samples, set_loader_defaults, set_work_dir
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.weights import load_weights, tell_hooks
from mmcalib.tasks.calibrate.apply import applied, layers_for, placement_of, prove
from mmcalib.tasks.calibrate.groups import check_places, groups_of_images
from mmcalib.tasks.calibrate.held_out import MOST_LEARNED, shared_with

HELD_OUT = (
    'Fit on images that no test uses: leave out --split test. With --force it fits, and the '
    'checkpoint records it'
)

SAME_DATA = (
    'Validation and test data are the same: before and after are cross-fitted over folds of the '
    'images (seed {seed}), and the scaling that is written is fitted on all of them.'
)


def run(parser: ToolParser, args: argparse.Namespace) -> dict:
    """Calibrate a checkpoint or an ensemble, and return what was measured."""
    with parser.ending_with_errors('Stopped: nothing was written.'):
        scaler = make_scaler(args)
        cfg, model, checkpoints = prepare(args)
        return calibrate(build_runner(cfg), scaler, args, model, checkpoints)


def make_scaler(args: argparse.Namespace) -> LogitScaler | None:
    """Return the scaler that the arguments ask for, None if it is to be chosen."""
    names = ('criterion', 'diagonal', 'off_diagonal', 'intercept')
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    kind = SCALERS.get(args.method)
    taken = inspect.signature(kind).parameters if kind else ()
    wrong = [f'--{name.replace("_", "-")}' for name in given if name not in taken]
    if wrong:
        raise UserError(f'--method {args.method} does not take {", ".join(wrong)}')
    if writes_temperature(args) and kind is not TemperatureScaler:
        raise UserError(
            f'--out {args.out}: only a temperature can calibrate a mean: use --method temperature'
        )
    return kind(**given) if kind else None


def writes_temperature(args: argparse.Namespace) -> bool:
    """Return whether a temperature of a mean is to be kept in a file of its own."""
    return args.out.endswith('.json')


def prepare(args: argparse.Namespace) -> tuple[Config, dict, list[Checkpoint]]:
    """Return config, model and checkpoints, and decide by the data whether to cross-fit.

    ``args.cross_fit`` says it, ``args.forced`` why a forced calibration may mislead.
    """
    check_integer('--samples', args.samples)
    check_integer('--num-bins', args.num_bins)
    check_integer('--seed', args.seed, least=0)
    if Path(args.out).suffix == '.py':
        raise UserError(f'--out {args.out} is the name of a config: name a .pth file')
    check_out(args.out, args)
    several = len(args.members) > 1 or args.tta or args.tta_scales is not None or args.mc_dropout
    if several and not writes_temperature(args):
        raise UserError(
            f'--out {args.out}: a temperature of the mean of several predictions is kept in a file '
            'of its own, which tools/test.py --temperature reads: name a .json file'
        )

    def load(path: str) -> Config:
        cfg = load_config(path, args.cfg_options)
        cfg.launcher = args.launcher
        set_work_dir(cfg, args.work_dir, limit=args.limit)
        return cfg

    cfg = load(args.members[0][0])
    same = same_data(cfg.get('val_dataloader'), cfg.get('test_dataloader'))
    args.cross_fit, args.forced = same and args.split == 'val' and not args.force, []
    if args.cross_fit:
        args.test = False
        if is_first_process(args.launcher):
            print(SAME_DATA.format(seed=args.seed))
    splits = splits_of(args)
    for split in splits:
        if cfg.get(f'{split}_dataloader') is None:
            raise UserError(f'the config has no {split}_dataloader')
    if args.split == 'test':
        refuse('fitted on the test split', HELD_OUT, args)
    elif same and not args.cross_fit:
        reason = "fitted on the validation split, which is the config's test split as well"
        refuse(reason, HELD_OUT, args)
    options = MeanOptions(
        members=args.members,
        tta=args.tta,
        tta_scales=args.tta_scales,
        mc_dropout=args.mc_dropout,
        dropout_seed=args.dropout_seed,
    )
    model = prepare_model(
        cfg,
        read_networks(cfg, args.members, load),
        options,
        sorted(splits),
        always_mean=writes_temperature(args),
    )
    set_loader_defaults(cfg)
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    return cfg, model.description, model.checkpoints


def splits_of(args: argparse.Namespace) -> list[str]:
    """Return the split of the fit, and the other one that is measured."""
    return list(dict.fromkeys([args.split, *(['test'] if args.test else [])]))


def check_out(file: str, args: argparse.Namespace) -> None:
    """Raise an error if writing a file would lose another.

    Raises:
        UserError: If it is a config or checkpoint to read, by whatever name; a folder; or there,
            unless it is to be overwritten.
        OSError: If nothing can be written there.
    """
    for pair in args.members:
        for read, what in zip(pair, ('config', 'checkpoint'), strict=True):
            if os.path.exists(file) and os.path.exists(read) and os.path.samefile(file, read):
                raise UserError(f'--out {args.out}: {file} is the {what} itself: name another file')
    if os.path.exists(file) and not args.overwrite:
        raise UserError(f'--out {file} exists: name another file, or add --overwrite')
    check_writable(file)


def refuse(reason: str, remedy: str, args: argparse.Namespace) -> None:
    """Raise an error, or note its reason where the calibration is forced."""
    if not args.force:
        raise UserError(f'refused: {reason}. {remedy}')
    args.forced.append(reason)


def calibrate(
    runner: Runner,
    scaler: LogitScaler | None,
    args: argparse.Namespace,
    tested: dict,
    checkpoints: Sequence[Checkpoint],
) -> dict:
    """Fit a scaling to a model's logits, and write the calibrated model or the temperature.

    A scaling that a layer can absorb is folded: the file differs from the original in the tensors
    of that layer (nearly always a weight and a bias). Any other one is attached: the file also has
    the tensors ``calibration.*``, and a config beside it, of the same name, reads them. Either says
    in ``meta['calibration']`` the method, its parameters, what it was fitted on, and the numbers
    before and after. Of a mean, a JSON file says the same.

    The model runs once over the images of a classifier, and twice over maps, which are too large
    to be kept.

    Args:
        runner: Of the config that :func:`prepare` returned.
        scaler: Not fitted yet; None to choose a method by
            :func:`~mmcalib.calibration.choose.choose_method`.
        args: Of tools/calibrate.py, as :func:`prepare` left them.
        tested: The model, as its record has it.
        checkpoints: Of its members.

    Returns:
        What the file says. If the choice fell on no scaling, nothing is written, and what belongs
        to a scaling is missing.

    Raises:
        ValueError: For data that determine no scaling; for a checkpoint that was calibrated before;
            if the calibrated model does not predict what it should.
    """
    of_mean, beside = writes_temperature(args), Path(args.out).with_suffix('.py')
    content = None if of_mean else content_of(checkpoints[0], args)
    loaders = load_model_and_data(runner, splits_of(args), checkpoints)
    shared = check_held_out(runner.cfg, loaders, args)
    model, loader = runner.model, loaders[args.split]
    member = model.module if isinstance(model, MeanProbabilityModel) else model
    head, pixels = head_of(member), hasattr(member, 'decode_head')
    ignored = getattr(head, 'ignore_index', None)
    named = groups_of_images(loader.dataset, args.groups)
    if args.cross_fit or scaler is None:
        check_groups(named, args)
    layers, attached = [], None
    if not of_mean:  # before the long part: where can a scaling go?
        batch = next(iter(loader))
        layers, attached = layers_for(model, scaler or TemperatureScaler(), batch)
        if attached or not scaler:
            check_out(str(beside), args)

    how = dict(of_samples=not layers, ignore_index=255 if ignored is None else ignored)
    kept = None if of_mean else KeptBatches()
    images = predictions(model, loader, 'Reading logits', kept=kept, **how)
    images = images if pixels else list(images)
    drawn = draw(images, num_samples=args.samples, seed=args.seed, gather=all_gather_object)
    group_of = groups_of(named, drawn, args)
    drawn = replace(drawn, images=group_of[drawn.images])
    groups = int(group_of.max()) + 1
    cross_fit = args.cross_fit or 'if cheap'
    fit = fit_scaling(
        drawn,
        scaler,
        pixels=pixels,
        cross_fit=cross_fit,
        seed=args.seed,
        smoke=args.limit is not None,
    )
    fitted, candidates = fit.scaler, fit.candidates
    classes = class_names(getattr(loader.dataset, 'metainfo', None))
    unlabelled = [classes[k] if k < len(classes) else k for k in drawn.unlabelled or ()]
    if fitted and not of_mean:
        placement = placement_of(model, fitted, kept, of_samples=how['of_samples'])
        layers, attached = placement.layers, placement.reason
        how['of_samples'] = not layers
        if attached:  # perhaps for a batch that is not the first
            check_out(str(beside), args)
        config = load_config(args.members[0][0], args.cfg_options)
        content, config = applied(content, config, model, fitted, layers)
        difference = prove(content, config, model, fitted, kept)

    threshold = getattr(head, 'thr', getattr(head, 'threshold', 0.5))  # of several labels, or one
    results = {}
    for split, data in loaders.items():
        if pixels or split != args.split:
            images = predictions(model, data, f'Before and after, {split}', **how)
        if not pixels:
            images = joined(images)
        scalers, fold_of = fit.scalers, None
        if split != args.split and fitted:
            scalers = [fitted]
        elif fit.fold_of is not None:
            fold_of = fit.fold_of[group_of]
        options = dict(num_bins=args.num_bins, threshold=threshold, gather=all_gather_object)
        results[split] = before_and_after(images, scalers, fold_of, **options)
    described = describe_dataset(runner.cfg[f'{args.split}_dataloader'].dataset)
    described = {key: described[key] for key in DATASET_KEYS if key in described}
    record = {
        'method': NONE,
        'split': args.split,
        'dataset': {**described, 'samples': drawn.num_images},
        'shared': shared,
        'groups': groups,
        'num_predictions': drawn.population,
        'seed': args.seed,
        'num_bins': args.num_bins,
        'limit': args.limit,
        'candidates': candidates or None,
        'information': fit.information,
        'unlabelled': unlabelled,
        'threshold': head.threshold if getattr(head, 'out_channels', None) == 1 else None,
        'fitted': results[args.split],
        'tested': results.get('test'),
        'forced': args.forced,
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
    }
    if not fitted:
        runner.call_hook('after_run')
        return record
    record |= {
        'method': fitted.method,
        'options': fitted.get_params(),
        'parameters': fitted.parameters,
        **fit.errors,
        'num_fitted': fitted.num_predictions_,
        'folds': len(fit.scalers) if fit.fold_of is not None else 0,
    }
    if of_mean:
        record |= {'temperature': fitted.temperature_, 'model': tested}
    else:
        (member,), meta = tested['members'], content['meta']
        earlier = (member['calibration'] or {'methods': []})['methods']
        record |= {'layers': layers, 'attached': attached, 'difference': difference}
        record |= {'checkpoint': member['file'], 'finished': member['finished']}
        record['methods'] = [*earlier, record['method']]
        if CALIBRATION in meta:
            record['earlier'] = meta[CALIBRATION]
        meta[CALIBRATION] = record
    if is_main_process():
        write(args.out, content or record, config if attached else None)
    runner.call_hook('after_run')
    return record


def check_held_out(cfg: Config, loaders: dict[str, Iterable], args: argparse.Namespace) -> dict:
    """Refuse or warn of images of the fit that are also those of the training, or of the test.

    If the test has all of them, and no others, ``loaders`` loses it.

    Returns:
        What :func:`~mmcalib.tasks.calibrate.held_out.shared_with` counted.

    Raises:
        UserError: If more than a tenth are training images, and this is not forced.
    """
    datasets = {split: loader.dataset for split, loader in loaders.items()}
    shared = shared_with(cfg, args.split, datasets)
    images = shared['images']
    for other, whose in (('train', 'training'), ('test', 'test')):
        count = shared.get(other, 0)
        if not count:
            continue
        sentence = f'{count:,} of the {images:,} {args.split} images are {whose} images too'
        if other == 'train' and count > MOST_LEARNED * images:
            remedy = f'Set {args.split}_dataloader to images that the training did not see'
            refuse(f'{sentence}, of which the model is too sure', remedy, args)
        elif other == 'test' and count == images == shared['test_images']:
            if loaders.pop('test', None) is not None:
                print_log(SAME_DATA.format(seed=args.seed), 'current')
        else:
            effect = 'the model is surer of them than of others'
            if other == 'test':
                effect = 'the figures of the test after the calibration are too good'
            print_log(
                f'{sentence}, so {effect}: leave them out of the fit.', 'current', logging.WARNING
            )
    return shared


def check_groups(named: Tensor, args: argparse.Namespace) -> None:
    """Raise a UserError if all images are of one group, which no fold can divide."""
    if named.max() > 0:
        return
    count = len(named)
    if count == 1:
        reason, remedy = 'there is one image', 'take more images'
    elif args.groups:
        reason = f'--groups {args.groups} finds the same in the paths of all {count:,} images'
        remedy = 'name what differs between videos, patients or flights'
    else:
        reason = f'all {count:,} images are of one group'
        remedy = 'take images of other groups'
    what = 'a choice of the method' if args.method == 'auto' else 'a fit on the test images'
    raise UserError(f'{reason}, and {what} needs two or more independent ones: {remedy}')


def groups_of(named: Tensor, drawn: DrawnPredictions, args: argparse.Namespace) -> Tensor:
    """Return the group of each image, of groups that are independent.

    Args:
        named: ``(n,)`` int64, by the pattern or the data set.
        drawn: Predictions of the images.
        args: Of tools/calibrate.py.
    """
    group_of = independent_groups(drawn, named)
    if group_of is named:
        return named
    count = int(named.max()) + 1
    if args.groups:
        what = f'groups of --groups {args.groups}'
        remedy = 'If several are of one video, patient or flight, give a pattern that joins them.'
    else:
        what = 'images' if count == len(named) else 'groups'
        remedy = (
            'If they are of several videos, patients or flights, name these by --groups PATTERN.'
        )
    print_log(
        f'Neighbours among the {count:,} {what} are alike, as frames of a video are: {FOLDS} runs '
        f'of them are taken for what is independent. {remedy}',
        'current',
    )
    return group_of


def content_of(checkpoint: Checkpoint, args: argparse.Namespace) -> dict:
    """Return a checkpoint's content with a ``meta`` to write into.

    Raises:
        UserError: If it has been calibrated before, and this is not forced.
    """
    content = {**checkpoint.content, 'meta': dict(checkpoint.meta)}
    earlier = content['meta'].get(CALIBRATION)
    if earlier and earlier.get('attached'):
        raise UserError(
            f'the checkpoint has an attached scaling ({earlier["method"]}), which takes no other '
            f'on top, even with --force: calibrate the original, {earlier["checkpoint"]}'
        )
    if earlier:
        remedy = (
            f'It holds a {earlier["method"]} scaling, fitted on {earlier["split"]} at '
            f'{earlier["date"]}: use the original, {earlier["checkpoint"]}; or --force, which puts '
            'another scaling on top; the checkpoint then records both'
        )
        refuse('calibrated before', remedy, args)
    return content


def load_model_and_data(
    runner: Runner, splits: Sequence[str], checkpoints: Sequence[Checkpoint]
) -> dict[str, Iterable]:
    """Load the weights, and return loaders by split."""
    build_data(runner, splits)
    check_run(runner, splits)
    log_start(runner, tuple(splits))
    loaders = {split: getattr(runner, f'{split}_loop').dataloader for split in splits}
    check_places(loaders[splits[0]], splits[0])
    runner.call_hook('before_run')
    classes = class_names(getattr(loaders[splits[0]].dataset, 'metainfo', None))
    load_weights(runner.model, checkpoints, classes)
    tell_hooks(runner, checkpoints)
    if is_model_wrapper(runner.model):  # each process predicts its share of the images
        runner.model = runner.model.module
    return loaders


def write(out: str, content: Mapping, config: Config | None) -> None:
    """Write a temperature, or a checkpoint and, if it needs one, its config: both or none.

    Raises:
        UserError: If a file cannot be written: a full disk, say.
    """
    try:
        with ExitStack() as files:
            if config:  # takes its place after the checkpoint
                config.dump(files.enter_context(whole_file(Path(out).with_suffix('.py'))))
            file = files.enter_context(whole_file(out))
            if 'state_dict' in content:
                torch.save(content, file)
            else:
                file.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
    except (OSError, RuntimeError) as error:  # the latter is PyTorch's word for a full disk
        raise UserError(
            f'--out {out} cannot be written; is the disk full? The files that were there are '
            f'unchanged: make room, or name a file on another disk ({error})'
        ) from error
