"""Checkpoints: recognised by their weights, and put whole into a model of the same classes."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.losses import CalibrationLoss
from mmcalib.runs.safe_loading import load_file
from mmcalib.texts import command_text

AVERAGE = 'ema_state_dict'  # the key of averages in a checkpoint of mmengine's EMAHook
CALIBRATION = 'calibration'  # the key in `meta` of a checkpoint that was calibrated
ORIGINAL_IS_VALIDATED = re.compile(r"""\bevaluate_on_ema['"]?\s*[=:]\s*False\b""")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint.

    Attributes:
        path: Path of its file.
        content: Content of the file.
        weights: Weights by name, without the prefix of a wrapper.
        digest: Digest of the weights, by which they are recognised.
    """

    path: str
    content: Mapping
    weights: Mapping[str, Tensor]
    digest: str

    @property
    def meta(self) -> Mapping:
        """Seed, epoch, classes and other facts that the training wrote beside the weights."""
        return self.content.get('meta') or {}

    @property
    def classes(self) -> list[str]:
        """Names of the classes that it was trained on, none if it does not say."""
        return class_names(self.dataset_meta)

    @property
    def dataset_meta(self) -> Mapping:
        """Classes and palette of the training data; the toolboxes' versions 0.x have them above."""
        dataset_meta = self.meta.get('dataset_meta')
        if isinstance(dataset_meta, Mapping):
            return dataset_meta
        return {key.lower(): self.meta[key] for key in ('CLASSES', 'PALETTE') if key in self.meta}

    @property
    def calibration(self) -> Mapping:
        """Record of the calibration in it; empty if it was not calibrated."""
        calibration = self.meta.get(CALIBRATION)
        # Another tool may use the word for something else.
        is_ours = isinstance(calibration, Mapping) and 'method' in calibration
        return calibration if is_ours else {}


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint from a file or an address, as data where that suffices.

    Its weights are those that its training has validated.

    Raises:
        UserError: If it is missing, damaged or no checkpoint.
    """
    content = choose_validated_weights(load_file(str(path)), str(path))
    return checkpoint_from_content(content, str(path))


def checkpoint_from_content(content: Mapping, path: str) -> Checkpoint:
    """Return the checkpoint in a file's content, which may be the bare weights."""
    if 'state_dict' not in content:
        content = {'state_dict': content}
    weights = {name.removeprefix('module.'): value for name, value in content['state_dict'].items()}
    return Checkpoint(path, content, weights, weights_digest(weights))


def short_calibration(calibration: Mapping) -> dict | None:
    """Return what records say of a calibration, None without any.

    Args:
        calibration: Record of a calibration in a checkpoint or a file; it may be empty.
    """
    if not calibration:
        return None
    short = {'methods': calibration.get('methods', [calibration['method']])}
    for key in ('options', 'split', 'forced'):
        short[key] = calibration[key]
    for key in ('limit', 'class_prior'):
        if calibration.get(key):
            short[key] = calibration[key]
    return short


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return 16 hexadecimal digits that are equal for equal weights of equal names."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            copy = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            digest.update(copy.flatten().view(torch.uint8).numpy())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]


def choose_validated_weights(content: Mapping, path: str) -> Mapping:
    """Return a checkpoint's content with the weights that its training has validated.

    mmengine's EMAHook saves the average as ``state_dict``, and the original weights beside it.
    mmpretrain's EMAHook(evaluate_on_ema=False) validates the original ones. The average is another
    model than the one that was chosen, with other figures.
    """
    if AVERAGE not in content or is_average_validated(content):
        return content
    print_log(
        f'{path} holds original weights and their average. The original ones are used, since '
        'EMAHook(evaluate_on_ema=False) has validated these.',
        'current',
    )
    weights = dict(content['state_dict'])
    for name, value in content[AVERAGE].items():
        if name.startswith('module.'):
            weights[name.removeprefix('module.')] = value
    chosen = {key: value for key, value in content.items() if key != AVERAGE}
    chosen['state_dict'] = weights
    return chosen


def is_average_validated(content: Mapping) -> bool:
    """Return whether a training has validated the average of its weights, by its config's text.

    The text may be anyone's and is not executed. As mmengine writes it, the option stands in a call
    of dict, or as a key.
    """
    text = (content.get('meta') or {}).get('cfg')
    return not (isinstance(text, str) and ORIGINAL_IS_VALIDATED.search(text))


def fill(model: nn.Module, checkpoint: Checkpoint, *, resumed: bool = False) -> None:
    """Load weights into a model that they must fill, so that no layer keeps random ones.

    Missing may be only what the model makes anew at loading and, where it only predicts, auxiliary
    heads and what losses have learnt.

    Raises:
        UserError: If something is missing, or has another shape.
    """
    try:
        missing, unexpected = model.load_state_dict(checkpoint.weights, strict=False)
    except (RuntimeError, ValueError) as error:  # torch raises the first, modules of ours the other
        mismatches = [line.strip() for line in str(error).splitlines() if 'size mismatch' in line]
        problem = mismatches[0].rstrip('.') if mismatches else str(error)
    else:
        if any(name.startswith('calibration.') for name in unexpected):
            raise UserError(
                f'{checkpoint.path}: the calibration of the checkpoint is attached, and the config '
                f'has none: use the config that {command_text("calibrate")} wrote beside it'
            )
        # Some models make tensors anew at loading, as Swin-V2 does: these are in the checkpoint.
        lacking = [name for name in missing if name not in checkpoint.weights]
        if not resumed:
            lacking = without_training_parts(model, lacking)
        if not lacking:
            return
        problem = f'it lacks {lacking[0]}, one of {len(lacking)} missing tensors'
    new_start = ', or start anew from its weights by load_from' if resumed else ''
    raise UserError(
        f'{checkpoint.path}: the checkpoint does not fit the model of this config: {problem}. Use '
        f'the config that it was trained with{new_start}'
    )


def without_training_parts(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return names of tensors without those of auxiliary heads and of losses."""
    losses = tuple(
        f'{name}.' for name, module in model.named_modules() if isinstance(module, CalibrationLoss)
    )
    return [name for name in names if 'auxiliary' not in name and not name.startswith(losses)]


def class_names(data: object) -> list[str]:
    """Return the names of a data set's classes, by it or its metainfo; none if it does not say."""
    metainfo = getattr(data, 'metainfo', data)
    if not isinstance(metainfo, Mapping):
        return []
    classes = metainfo.get('classes', metainfo.get('CLASSES'))
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []


def class_difference(trained: Sequence[str], names: Sequence[str]) -> str:
    """Return in words how a data set's classes differ from those trained on."""
    parts = []
    if len(trained) != len(names):
        parts.append(f'it has {len(names)} classes, not {len(trained)}')
    for label, (trained_name, name) in enumerate(zip(trained, names, strict=False)):
        if trained_name != name:
            parts.append(f'class {label} is {name!r}, not {trained_name!r}')
            break
    return '; '.join(parts)


def check_classes(trained: Sequence[str], names: Sequence[str], compared: str) -> None:
    """Raise a UserError if labels of some data mean other classes than those trained on.

    A missing folder of images, for example, moves every later label by one, and the numbers look
    like others. If the data have only the first of the classes, in their order, a warning says so.
    Where either side names none, there is nothing to compare.
    """
    trained = list(trained)
    names = list(names)
    if not trained or not names or trained == names:
        return
    text = f'{compared}: {class_difference(trained, names)}'
    if trained[: len(names)] == names:
        print_log(f'The data have only the first classes, {text}.', 'current', logging.WARNING)
        return
    raise UserError(
        f'the classes differ between {text}. Is the checkpoint one of these data? If so, complete '
        'them or, if only the spelling differs, set the names of the training as '
        'dataset.metainfo.classes of the dataloader'
    )
