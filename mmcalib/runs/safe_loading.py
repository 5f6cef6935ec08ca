"""Reading of files with tensors as data, so that no code in them is executed unasked."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import CheckpointLoader, checkpoint as mmengine_checkpoint

from mmcalib.errors import UserError
from mmcalib.runs.record import digest

ONLY_WEIGHTS = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # PyTorch's own variable
STATISTICS = ('current', 'max', 'mean', 'min')
NAME_WITH_HASH = re.compile(r'-([0-9a-f]{8,})[.]')  # as published weights have it
DATE = re.compile(r'(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])')


def existing_file(path: str) -> str:
    """Return the file of a checkpoint, which an address is downloaded to.

    Raises:
        UserError: If there is none.
    """
    file = download(path) if '://' in path else os.path.expanduser(path)
    if not os.path.isfile(file):
        raise UserError(f'there is no checkpoint {file!r} in {os.getcwd()}')
    return file


def load_file(path: str, map_location: Any = 'cpu', **_) -> Mapping:
    """Return the content of a checkpoint, from a file or an address.

    mmengine's checkpoints hold logged values besides tensors, which are allowed. One that needs
    more runs code of its own: this is said before it does, or refused if it comes from an address
    or ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` is set.

    Raises:
        UserError: If it is missing, cannot be read, or holds something else.
    """
    file = existing_file(path)
    try:
        if reason := damage(file):
            raise ValueError(reason)
        content = load_content(file, map_location, is_trusted='://' not in path)
    except Exception as error:  # Its bytes, or its code, may raise anything.
        raise UserError(f'{file!r} is no readable checkpoint: {error}') from error
    check_is_checkpoint(content, file)
    if content.get('meta'):
        # Old versions wrote a config as an object there, which mmengine would execute.
        content['meta'].pop('config', None)
    return content


def check_is_checkpoint(content: object, file: str) -> None:
    """Refuse a file whose content, weights or ``meta`` are no values by name."""
    parts = [content]
    if isinstance(content, Mapping):
        parts += [content.get('state_dict', {}), content.get('meta') or {}]
    for part in parts:
        if not isinstance(part, Mapping):
            raise UserError(
                f'{file!r} is not a checkpoint of a model: it holds a {type(part).__name__} '
                'instead of values by name'
            )


def download(url: str) -> str:
    """Return the file of an address in PyTorch's folder of downloads.

    Raises:
        UserError: If it cannot be downloaded, or its content has another hash than its name.
    """
    name = Path(urlparse(url).path).name
    match = NAME_WITH_HASH.search(name)
    prefix = match[1] if match and not DATE.fullmatch(match[1]) else None
    if prefix is None:  # Two trainings have a `best.pth` each.
        name = f'{digest(url)}-{name}'
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    if path.is_file():
        return str(path)
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

    def load_untrusted(file: Any, map_location: Any = None, **_) -> Any:
        return load_content(file, map_location, is_trusted=False)

    CheckpointLoader.register_scheme('', load_file, force=True)
    mmengine_checkpoint.load_url = load_file
    mmengine_checkpoint._safe_torch_load = load_untrusted


def load_content(file: Any, map_location: Any, *, is_trusted: bool) -> Any:
    """Load a file or stream of PyTorch as data; one that is trusted may run code of its own.

    Raises:
        ValueError: If it holds code and is not trusted.
    """
    options = {'map_location': map_location}
    options['mmap'] = isinstance(file, str) and zipfile.is_zipfile(file)
    try:
        with safe_globals():
            return torch.load(file, weights_only=True, **options)
    except UnpicklingError as error:
        match = re.search(r'GLOBAL (\S+)', str(error))  # The rest is PyTorch's advice to trust it.
        reason = f'it holds more than data, {match[1]}' if match else 'it holds more than data'
        if not hasattr(torch.serialization, 'safe_globals'):
            reason += ' (as all of mmengine do, which PyTorch before 2.5 cannot tell from code)'
        if os.environ.get(ONLY_WEIGHTS, '0').lower() not in ('0', '', 'false', 'n', 'no'):
            raise ValueError(f'{reason}, and {ONLY_WEIGHTS} is set') from error
        reason += ', so loading it can run any code in it. It '
        if not is_trusted:
            raise ValueError(
                f'{reason}comes from an address: download it, and name the file if you trust it'
            ) from error
        print_log(
            f'Warning: {file}: {reason}is trusted because you named it; {ONLY_WEIGHTS}=1 refuses '
            'it.',
            'current',
        )
        return torch.load(file, weights_only=False, **options)


def safe_globals() -> AbstractContextManager:
    """Allow numpy's arrays and logged values, which mmengine's checkpoints hold besides tensors."""
    if not hasattr(torch.serialization, 'safe_globals'):
        return nullcontext()
    core = getattr(np, '_core', None) or np.core
    dtypes = {type(np.dtype(code)) for code in '?bBhHiIlLqQefdg'}
    numpy_globals = [
        core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, *dtypes
    ]  # fmt: skip
    return torch.serialization.safe_globals([*numpy_globals, HistoryBuffer, slice, _statistic])


def _statistic(owner: object, name: str) -> Any:
    """Stand in for `getattr`, by which logged values name their statistics.

    The real one would lead from any allowed class to all that Python can do.
    """
    if owner is not HistoryBuffer or name not in STATISTICS:
        raise UnpicklingError(f'it asks for {name!r} of {owner!r}')
    return getattr(owner, name)


# Checkpoints know it as getattr: PyTorch 2.6 goes by its name, newer ones by its qualified name.
_statistic.__module__ = 'builtins'
_statistic.__name__ = _statistic.__qualname__ = 'getattr'


def damage(path: str | Path) -> str | None:
    """Return the reason why a local file is no whole checkpoint, None if it is one.

    A zip file ends with its index, which one that was cut off does not have.
    """
    with open(path, 'rb') as file:
        start = file.read(2)
        if start[:1] == b'\x80' or zipfile.is_zipfile(file):  # \x80: PyTorch before 1.6
            return None
    return 'it was not written to its end' if start == b'PK' else 'it is another kind of file'
