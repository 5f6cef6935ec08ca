"""What tools/calibrate.py does: from a checkpoint and held-out data to a calibrated checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.runner import CheckpointLoader, Runner
from torch import Tensor, nn

from mmcalib import __version__
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.logit_scaler import LogitScaler
from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler
from mmcalib.runs.model_logits import NUM_SAMPLES, Sample, gather, passes
from mmcalib.runs.predicting_layer import TOLERANCE, Comparison, compare, find_layers, fold
from mmcalib.runs.results import CALIBRATION, describe_dataset

HELD_OUT = (
    'Fit on data that no test sees: a part of the training images that the training left out, as '
    'SeededSplit draws it in the _heldout configs; or --force, which the checkpoint will say'
)


@dataclass
class Options:
    """What a calibration is to do.

    Attributes:
        split: ``'val'`` or ``'test'``: which of the config's splits to fit on.
        test: Whether to measure before and after on the test split too.
        num_samples: How many predictions to draw for the fit.
        every_prediction: Whether to go on to the optimum of all predictions, in several passes.
        seed: Of the draw.
        num_bins: Of the ECE and AECE before and after.
        force: Whether to go on where the result may mislead.
    """

    split: str = 'val'
    test: bool = False
    num_samples: int = NUM_SAMPLES
    every_prediction: bool = False
    seed: int = 0
    num_bins: int = 15
    force: bool = False


@dataclass
class Calibration:
    """What came of it.

    Attributes:
        meta: What the checkpoint says of it, under ``meta['calibration']``.
        fitted: Before and after on the split it was fitted on.
        tested: The same on the test split, None if not asked for.
        notes: Sentences for the user.
    """

    meta: dict
    fitted: Comparison
    tested: Comparison | None
    notes: list[str] = field(default_factory=list)


def calibrate(
    runner: Runner, scaler: LogitScaler, checkpoint: str, out: str, options: Options
) -> Calibration:
    """Fit a scaling to a model's logits, fold it into its last layer and write a checkpoint.

    The file differs from the original in the tensors of that layer (nearly always a weight and a
    bias) and in ``meta['calibration']``: method, parameters, what it was fitted on, the numbers
    before and after.

    Args:
        runner: With the checkpoint as ``load_from``.
        scaler: Not fitted yet.
        checkpoint: The file to read.
        out: The file to write.
        options: See :class:`Options`.

    Raises:
        ValueError: If no linear layer makes the model's logits, as found by running it; for what
            :func:`check_options` and :func:`read_checkpoint` refuse; for data that determine no
            scaling.
    """
    forced = check_options(runner.cfg, options)
    content, reasons = read_checkpoint(checkpoint, force=options.force)
    forced += reasons
    state = content['state_dict']
    try:
        loop = runner.val_loop if options.split == 'val' else runner.test_loop
    except ValueError as error:  # as mmengine's, which cannot pack an empty list
        raise ValueError(
            f'the {options.split} split is empty or cannot be read: {error}'
        ) from error
    runner.call_hook('before_run')
    runner.load_or_resume()
    model, loader = runner.model, loop.dataloader
    ignore_index = _ignore_index(model)

    # Before the long part: is there a layer to fold into, and is it in the file?
    batch = next(iter(loader))
    names = find_layers(model, batch, mixes_classes=isinstance(scaler, MatrixScaler))
    keys = _keys_in_checkpoint(state, model, names)
    if not isinstance(scaler, TemperatureScaler):
        _check_bias(model, names)

    sample = gather(
        model,
        loader,
        num_samples=options.num_samples,
        seed=options.seed,
        ignore_index=ignore_index,
    )
    scaler.fit(sample.logits, sample.labels)
    errors = _errors(scaler, sample)
    if options.every_prediction and not sample.is_everything:
        scaler.refine(passes(model, loader, ignore_index=ignore_index))
        if errors:
            errors['sampling_error'] = 0.0

    folded = fold(model, names, scaler)
    # In the file's precision, so that what is proven is what is written; but half is too coarse.
    folded = {
        key: value.to(torch.promote_types(state[keys[key]].dtype, torch.float32))
        for key, value in folded.items()
    }
    measure = partial(
        _measure,
        model,
        scaler=scaler,
        tensors=folded,
        num_bins=options.num_bins,
        ignore_index=ignore_index,
    )
    fitted = tested = measure(loader, text=f'Before and after, {options.split}')
    if options.split != 'test':
        tested = None
        if options.test:
            tested = measure(runner.test_loop.dataloader, text='Before and after, test')

    everything = options.every_prediction or sample.is_everything
    meta = {
        'method': next(name for name, kind in SCALERS.items() if type(scaler) is kind),
        'options': {k: v for k, v in vars(scaler).items() if not k.endswith('_') and k[0] != '_'},
        'parameters': scaler.parameters,
        **errors,
        'split': options.split,
        'dataset': {
            **describe_dataset(runner.cfg[f'{options.split}_dataloader'].dataset),
            'samples': sample.num_images,
        },
        'num_predictions': sample.population,
        'num_fitted': sample.population if everything else len(sample.labels),
        'seed': options.seed,
        'num_bins': options.num_bins,
        'layers': names,
        'fitted': asdict(fitted),
        'tested': asdict(tested) if tested else None,
        'forced': forced,
        'checkpoint': os.path.basename(checkpoint),
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
    }
    if CALIBRATION in content['meta']:
        meta['earlier'] = content['meta'][CALIBRATION]
    content['meta'][CALIBRATION] = meta
    state.update({keys[key]: value for key, value in folded.items()})
    Path(out).resolve().parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, out)
    return Calibration(meta, fitted, tested, _notes(meta, sample, _threshold(model)))


def check_options(cfg: Config, options: Options) -> list[str]:
    """Return for what reasons a forced calibration may mislead, judged by the config.

    Raises:
        ValueError: If the config lacks a split, or there is such a reason and it is not forced.
    """
    for split in [options.split, *(['test'] if options.test else [])]:
        if cfg.get(f'{split}_dataloader') is None:
            raise ValueError(f'the config has no {split}_dataloader')
    if cfg.get('launcher', 'none') != 'none':
        raise ValueError(f'calibrating runs on one process: leave out --launcher {cfg.launcher}')
    if options.num_samples < 1:
        raise ValueError(f'at least one prediction must be drawn, got {options.num_samples}')
    if options.split == 'test':
        return [_refuse('fitted on the test split', HELD_OUT, force=options.force)]
    if same_data(cfg.val_dataloader, cfg.get('test_dataloader')):
        reason = "fitted on the validation split, which is the config's test split as well"
        return [_refuse(reason, HELD_OUT, force=options.force)]
    return []


def same_data(one: Mapping | None, other: Mapping | None) -> bool:
    """Return whether two dataloaders' configs read the same data, whatever their pipelines."""
    if one is None or other is None:
        return False
    return _without_pipeline(one['dataset']) == _without_pipeline(other['dataset'])


def check_out(out: str, checkpoint: str, *, overwrite: bool) -> None:
    """Raise a ValueError if the file to write is there already, or is the one to read."""
    if os.path.realpath(out) == os.path.realpath(checkpoint):
        raise ValueError(f'--out {out} is the checkpoint itself: name another file')
    if os.path.isdir(out):
        raise ValueError(f'--out {out} is a folder: name a file in it')
    if os.path.exists(out) and not overwrite:
        raise ValueError(f'--out {out} exists: name another file, or add --overwrite')


def read_checkpoint(path: str, *, force: bool) -> tuple[dict, list[str]]:
    """Return a checkpoint with its ``state_dict`` and ``meta``, and why to calibrate it misleads.

    Raises:
        ValueError: If it has been calibrated before, and this is not forced.
    """
    content = CheckpointLoader.load_checkpoint(path, map_location='cpu')
    if 'state_dict' not in content:  # the bare weights, as of some model zoos
        content = {'state_dict': content}
    content = {**content, 'meta': dict(content.get('meta') or {})}
    earlier = content['meta'].get(CALIBRATION)
    if not earlier:
        return content, []
    hint = (
        f'It holds a {earlier["method"]} scaling, fitted on {earlier["split"]} at '
        f'{earlier["date"]}: take the original, {earlier["checkpoint"]}; or --force, which puts '
        'another scaling on top, and the checkpoint will tell of both'
    )
    return content, [_refuse('calibrated before', hint, force=force)]


def _refuse(reason: str, hint: str, *, force: bool) -> str:
    if not force:
        raise ValueError(f'refused: {reason}. {hint}')
    return reason


def _without_pipeline(node: object) -> object:
    if isinstance(node, Mapping):
        skipped = ('pipeline', 'test_mode', 'lazy_init', 'serialize_data')
        return {key: _without_pipeline(value) for key, value in node.items() if key not in skipped}
    if isinstance(node, (list, tuple)):
        return [_without_pipeline(item) for item in node]
    return os.path.normpath(node) if isinstance(node, str) and '/' in node else node


def _head(model: nn.Module) -> nn.Module | None:
    """Return the head that predicts: of several decode heads, the last."""
    head = getattr(model, 'decode_head', getattr(model, 'head', None))
    return head[-1] if isinstance(head, nn.ModuleList) else head


def _ignore_index(model: nn.Module) -> int:
    index = getattr(_head(model), 'ignore_index', None)
    return 255 if index is None else index


def _threshold(model: nn.Module) -> float | None:
    head = _head(model)
    return head.threshold if getattr(head, 'out_channels', None) == 1 else None


def _keys_in_checkpoint(
    state: Mapping[str, Tensor], model: nn.Module, names: Sequence[str]
) -> dict[str, str]:
    """Return the checkpoint's key of each parameter of the layers.

    Raises:
        ValueError: If it has none, or another value than the model that was loaded from it.
    """
    keys = {}
    for name in names:
        for kind, value in model.get_submodule(name).named_parameters():
            own = f'{name}.{kind}'
            key = next((key for key in (own, f'module.{own}') if key in state), None)
            if key is None or not torch.equal(state[key].to(value), value.detach()):
                what = 'does not hold' if key is None else 'is loaded with another value of'
                raise ValueError(
                    f'the checkpoint {what} {own}, the layer that predicts: is it of this config?'
                )
            keys[own] = key
    return keys


def _check_bias(model: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        if model.get_submodule(name).bias is None:
            raise ValueError(
                f'{name} has no bias, which would have to take up the shift of the classes: take '
                '--method temperature, which has none'
            )


def _measure(model: nn.Module, loader, **options) -> Comparison:
    """Compare before and after.

    Raises:
        ValueError: If folding does not reproduce the scaled logits.
    """
    result = compare(model, loader, **options)
    if not result.difference <= TOLERANCE:
        raise ValueError(
            f'folding was tried, but the logits differ from the scaled ones by '
            f'{result.difference:.1e} of the largest: the head changes them after its last layer. '
            'Nothing was written'
        )
    return result


def _errors(scaler: LogitScaler, sample: Sample) -> dict[str, float]:
    """Return the standard error of a temperature, and the part of it that is due to the draw."""
    if not isinstance(scaler, TemperatureScaler) or scaler.criterion != 'nll' or scaler.at_bound_:
        return {}
    of_draw = scaler.standard_error(sample.logits, sample.labels)
    left_out = 1 - len(sample.labels) / sample.population
    return {
        'standard_error': scaler.standard_error(sample.logits, sample.labels, sample.images),
        'sampling_error': of_draw * left_out**0.5,
    }


def _notes(meta: dict, sample: Sample, threshold: float | None) -> list[str]:
    fitted = meta['fitted']
    text = f'{meta["method"].capitalize()} scaling'
    if meta['method'] == 'temperature':
        text = f'Temperature {meta["parameters"]["temperature"]:.4g}'
    if 'standard_error' in meta:
        text += f' ± {meta["standard_error"]:.2g} (standard error over {sample.num_images:,} images'
        if meta['sampling_error']:
            text += f', ± {meta["sampling_error"]:.2g} of it by the draw'
        text += ')'
    notes = [
        f'{text}, fitted on {meta["num_fitted"]:,} of {meta["num_predictions"]:,} predictions of '
        f'{meta["split"]}.'
    ]
    for split, result in (('', fitted), (' of test', meta['tested'])):
        if result is None or (split and meta['split'] == 'test'):
            continue
        what = 'class' if threshold is None else f'side of the threshold {threshold}'
        count = f'{result["changed"]:,} of {result["num_predictions"]:,}'
        notes.append(f'{count} predictions{split} changed {what}.')
    notes.append(
        f'Folded into {" and ".join(meta["layers"])}: its logits are the scaled ones to '
        f'{fitted["difference"]:.1e}.'
    )
    notes += [f'Beware: {reason}.' for reason in meta['forced']]
    return notes
