"""Checkpoints: read as data, recognised by their weights, put whole into a model."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from torch import Tensor, nn

from mmcalib.cli.files import other_checkpoints
from mmcalib.errors import UserError
from mmcalib.losses import CalibrationLoss
from mmcalib.runs.record import digest

ONLY_WEIGHTS = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # PyTorch's own variable
STATISTICS = ('current', 'max', 'mean', 'min')
AVERAGE = 'ema_state_dict'  # in a checkpoint of a training with mmengine's EMAHook
CALIBRATION = 'calibration'  # in `meta`: of a checkpoint that was calibrated
NAME_WITH_HASH = re.compile(r'-([0-9a-f]{8,})[.]')  # as published weights have it
ORIGINAL_IS_VALIDATED = re.compile(r"""\bevaluate_on_ema['"]?\s*[=:]\s*False\b""")
DATE = re.compile(r'(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])')


@dataclass(frozen=True)
class Checkpoint:
    """A file's content, its weights, and the digest by which they are recognised."""

    path: str
    content: Mapping
    weights: Mapping[str, Tensor]
    digest: str

    @property
    def meta(self) -> Mapping:
        """What the checkpoint says of itself."""
        return self.content.get('meta') or {}

    @property
    def classes(self) -> list[str]:
        """Names of the classes that it was trained on, none if it does not say."""
        return classes_of(self.dataset_meta)

    @property
    def dataset_meta(self) -> Mapping:
        """Classes and palette of the training data; the toolboxes' versions 0.x have them above."""
        described = self.meta.get('dataset_meta')
        if isinstance(described, Mapping):
            return described
        return {key.lower(): self.meta[key] for key in ('CLASSES', 'PALETTE') if key in self.meta}


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint from a file or an address, as data where that suffices.

    Its weights are those that its training has validated.

    Raises:
        UserError: If it is missing, damaged or no checkpoint.
    """
    return checkpoint_of(choose_validated_weights(load_file(str(path)), str(path)), str(path))


def checkpoint_of(content: Mapping, path: str) -> Checkpoint:
    """Return the checkpoint in a file's content, which may be the bare weights."""
    content = content if 'state_dict' in content else {'state_dict': content}
    weights = content['state_dict']
    weights = {key.removeprefix('module.'): value for key, value in weights.items()}
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode())
        if isinstance(value, Tensor):
            copy = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            found.update(copy.flatten().view(torch.uint8).numpy())
        else:
            found.update(repr(value).encode())
    return Checkpoint(path, content, weights, found.hexdigest()[:16])


def choose_validated_weights(content: Mapping, path: str) -> Mapping:
    """Return a checkpoint's content with the weights that its training has validated.

    mmengine's EMAHook saves the average as ``state_dict``, and the original weights beside it.
    mmpretrain's EMAHook(evaluate_on_ema=False) validates the original ones. The average is another
    model than the one that was chosen, with other figures.
    """
    if AVERAGE not in content or _is_average_validated(content):
        return content
    print_log(
        f'{path} holds original weights and their average. The original ones are used, since '
        'EMAHook(evaluate_on_ema=False) has validated these.',
        'current',
    )
    weights = dict(content['state_dict'])
    for key, value in content[AVERAGE].items():
        if key.startswith('module.'):
            weights[key.removeprefix('module.')] = value
    chosen = {**content, 'state_dict': weights}
    del chosen[AVERAGE]
    return chosen


def _is_average_validated(content: Mapping) -> bool:
    """Return whether a training has validated the average of its weights, by its config's text.

    The text may be anyone's and is not executed. As mmengine writes it, the option stands in a call
    of dict, or as a key.
    """
    text = (content.get('meta') or {}).get('cfg')
    return not (isinstance(text, str) and ORIGINAL_IS_VALIDATED.search(text))


def load_file(path: str, map_location: Any = 'cpu', **_) -> Mapping:
    """Return the content of a checkpoint, from a file or an address.

    mmengine's checkpoints hold logged values besides tensors, which are allowed. One that needs
    more runs code of its own: this is said before it does, or refused if it comes from an address
    or ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` is set.

    Raises:
        UserError: If it is missing, cannot be read, or holds something else.
    """
    file = downloaded(path) if '://' in path else os.path.expanduser(path)
    if not os.path.isfile(file):
        raise UserError(
            f'there is no checkpoint {file!r} in {os.getcwd()}{other_checkpoints(file)}'
        )
    try:
        if why := damage(file):
            raise ValueError(why)
        content = _load(file, map_location, trusted='://' not in path)
    except Exception as error:  # of whatever its bytes, or its code, led to
        raise UserError(f'{file!r} is no readable checkpoint: {error}') from error
    for part in (content, *map(getattr(content, 'get', lambda key: {}), ('state_dict', 'meta'))):
        if part is not None and not isinstance(part, Mapping):
            raise UserError(
                f'{file!r} is not a checkpoint of a model: it holds a {type(part).__name__} '
                'instead of values by name'
            )
    if content.get('meta'):
        content['meta'].pop('config', None)  # of old versions; mmengine would execute it
    return content


def downloaded(url: str) -> str:
    """Return the file of an address in PyTorch's folder of downloads.

    Raises:
        UserError: If it cannot be downloaded, or its content has another hash than its name.
    """
    name = Path(urlparse(url).path).name
    named = NAME_WITH_HASH.search(name)
    prefix = named[1] if named and not DATE.fullmatch(named[1]) else None
    if prefix is None:  # two trainings have a `best.pth` each
        name = f'{digest(url)}-{name}'
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=prefix)
        except OSError as error:
            raise UserError(f'{url} cannot be downloaded: {error}') from error
        except RuntimeError as error:
            if 'hash' not in str(error):
                raise
            raise UserError(
                f'{url} is not the file that its name tells, whose SHA-256 begins with {prefix}: '
                'it was changed or cut off. Download it yourself, and name the file if you trust it'
            ) from error
    return str(path)


def load_safely() -> None:
    """Have mmengine load by the functions above, from files and from wherever they lie."""
    CheckpointLoader.register_scheme('', load_file, force=True)
    mmengine_checkpoint.load_url = load_file
    mmengine_checkpoint._safe_torch_load = lambda file, map_location=None, **_: _load(
        file, map_location, trusted=False
    )


def _load(file: Any, map_location: Any, *, trusted: bool) -> Any:
    mmap = isinstance(file, str) and zipfile.is_zipfile(file)
    load = partial(torch.load, file, map_location=map_location, mmap=mmap)
    try:
        with _safe_globals():
            return load(weights_only=True)
    except UnpicklingError as error:
        named = re.search(r'GLOBAL (\S+)', str(error))  # the rest is PyTorch's advice, to trust it
        reason = f'it holds more than data{f", {named[1]}" if named else ""}'
        if not hasattr(torch.serialization, 'safe_globals'):
            reason += ' (as all of mmengine do, which PyTorch before 2.5 cannot tell from code)'
        if os.environ.get(ONLY_WEIGHTS, '0').lower() not in ('0', '', 'false', 'n', 'no'):
            raise ValueError(f'{reason}, and {ONLY_WEIGHTS} is set') from error
        reason += ', so loading it can run any code in it. It '
        if not trusted:
            raise ValueError(
                f'{reason}comes from an address: download it, and name the file if you trust it'
            ) from error
        print_log(
            f'Warning: {file}: {reason}is trusted because you named it; {ONLY_WEIGHTS}=1 refuses '
            'it.',
            'current',
        )
        return load(weights_only=False)


def _safe_globals() -> AbstractContextManager:
    """Allow numpy's arrays and logged values, which mmengine's checkpoints hold besides tensors."""
    if not hasattr(torch.serialization, 'safe_globals'):
        return nullcontext()
    core = getattr(np, '_core', None) or np.core
    dtypes = {type(np.dtype(kind)) for kind in '?bBhHiIlLqQefdg'}
    numpy = [core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, *dtypes]
    return torch.serialization.safe_globals([*numpy, HistoryBuffer, slice, _statistic])


def _statistic(owner: object, name: str) -> Any:
    """Stand in for `getattr`, by which logged values name their statistics.

    The real one would lead from any allowed class to all that Python can do.
    """
    if owner is not HistoryBuffer or name not in STATISTICS:
        raise UnpicklingError(f'it asks for {name!r} of {owner!r}')
    return getattr(owner, name)


# As checkpoints call it: PyTorch 2.6 goes by its name, newer ones by its qualified name.
_statistic.__module__ = 'builtins'
_statistic.__name__ = _statistic.__qualname__ = 'getattr'


def fill(model: nn.Module, checkpoint: Checkpoint, *, resumed: bool = False) -> None:
    """Load weights into a model that they must fill.

    Only what the model makes anew at loading may lack, and, where it only predicts, auxiliary heads
    and what losses have learnt.

    Raises:
        UserError: If something is missing, or has another shape.
    """
    try:
        missing, unexpected = model.load_state_dict(checkpoint.weights, strict=False)
    except (RuntimeError, ValueError) as error:  # torch's own, and those of modules of ours
        sizes = [line.strip() for line in str(error).splitlines() if 'size mismatch' in line]
        problem = sizes[0].rstrip('.') if sizes else str(error)
    else:
        if any(key.startswith('calibration.') for key in unexpected):
            raise UserError(
                f'{checkpoint.path}: the calibration of the checkpoint is attached, and the config '
                'has none: use the config that tools/calibrate.py wrote beside the checkpoint'
            )
        losses = [f'{name}.' for name, m in model.named_modules() if isinstance(m, CalibrationLoss)]
        lacking = [
            key
            for key in missing
            if key not in checkpoint.weights  # those that the model makes anew, as Swin-V2 does
            and (resumed or not ('auxiliary' in key or key.startswith(tuple(losses))))
        ]
        problem = f'it lacks {len(lacking)} tensors, such as {lacking[0]}' if lacking else ''
    if problem:
        other = ', or start anew from its weights by load_from' if resumed else ''
        raise UserError(
            f'{checkpoint.path}: the checkpoint does not fit the model of this config: {problem}. '
            f'Use the config that it was trained with{other}'
        )


def classes_of(data: object) -> list[str]:
    """Return the names of a data set's classes, by it or its metainfo; none if it does not say."""
    metainfo = getattr(data, 'metainfo', data)
    metainfo = metainfo if isinstance(metainfo, Mapping) else {}
    classes = metainfo.get('classes', metainfo.get('CLASSES'))
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []


def class_difference(trained: Sequence[str], here: Sequence[str]) -> str:
    """Return in words how a data set's classes differ from those trained on."""
    parts = [f'it has {len(here)} classes, not {len(trained)}'] if len(trained) != len(here) else []
    pairs = enumerate(zip(trained, here, strict=False))
    other = [f'class {label} is {b!r}, not {a!r}' for label, (a, b) in pairs if a != b]
    return '; '.join(parts + other[:1])


def check_classes(trained: Sequence[str], here: Sequence[str], between: str) -> None:
    """Raise a UserError if labels of some data mean other classes than those trained on.

    A missing folder of images, for example, moves every later label by one, and the numbers look
    like others. Of data that have only the first of the classes, in their order, it is said. Where
    either side names none, there is nothing to compare.
    """
    trained, here = list(trained), list(here)
    if not trained or not here or trained == here:
        return
    text = f'{between}: {class_difference(trained, here)}'
    if trained[: len(here)] == here:
        print_log(f'Of the classes of {text}.', 'current', logging.WARNING)
        return
    raise UserError(
        f'the classes differ between {text}. Is the checkpoint one of these data? If so, complete '
        'them or, if only the spelling differs, set the names of the training as '
        'dataset.metainfo.classes of the dataloader'
    )


def damage(path: str | Path) -> str | None:
    """Return the reason why a local file is no whole checkpoint, None if it is one.

    A zip file ends with its index, which one that was cut off does not have.
    """
    with open(path, 'rb') as file:
        start = file.read(2)
        if start[:1] == b'\x80' or zipfile.is_zipfile(file):  # \x80: PyTorch before 1.6
            return None
    return 'it was not written to its end' if start == b'PK' else 'it is another kind of file'
