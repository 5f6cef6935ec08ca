"""Loading checkpoints without trusting them unasked, and writing them whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner import checkpoint as mmengine_checkpoint

from mmcalib.checks import UserError
from mmcalib.work_dir import whole_file

BACKEND = 'whole_files'
ONLY_WEIGHTS = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # PyTorch's own variable
STATISTICS = ('current', 'max', 'mean', 'min')


def load_from_local(
    filename: str, map_location: Any = None, *, mmap: bool = False, trusted: bool = True
) -> Mapping:
    """Load a checkpoint for a Runner, as data where that suffices.

    With `mmap`, tensors are read from the file where they are used.

    mmengine's checkpoints hold logged values besides tensors, which are allowed. One that needs
    more runs code of its own: this is said before it does, or refused if it is not `trusted` or
    ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` is set.

    Raises:
        UserError: If it cannot be read, or holds something else.
        FileNotFoundError: If it is not there.
    """
    filename = os.path.expanduser(filename)
    _state(filename)
    try:
        content = _load(filename, map_location, mmap, trusted)
    except Exception as error:  # of whatever its bytes, or its code, led to
        raise UserError(f'{filename!r} cannot be read: {error}') from error
    _check_content(content, filename)
    if content.get('meta'):
        content['meta'].pop('config', None)  # of old versions; mmengine would execute it
    return content


def load_from_address(url: str, map_location: Any = None, **_) -> Mapping:
    """Load a checkpoint from an http address, through PyTorch's folder of downloads.

    Raises:
        UserError: If it cannot be read, or holds more than data.
    """
    path = Path(torch.hub.get_dir(), 'checkpoints', Path(urlparse(url).path).name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path))
        except OSError as error:
            raise UserError(f'{url} cannot be downloaded: {error}') from error
    return load_from_local(str(path), map_location, trusted=False)


def load_checkpoint(path: str) -> Mapping:
    """Load a checkpoint from a file or an address, without a Runner."""
    _load_safely()
    return CheckpointLoader.load_checkpoint(path, map_location='cpu')


def is_file(path: str | Path) -> bool:
    """Return whether weights are in a file, here or at an address."""
    return '://' in str(path) or os.path.isfile(os.path.expanduser(path))


def read_meta(filename: str) -> Mapping:
    """Return the ``meta`` of a local checkpoint, an empty one of any other."""
    filename = os.path.expanduser(filename)
    return {} if '://' in filename else _meta_of(filename, *_state(filename))


@lru_cache(maxsize=64)
def _meta_of(filename: str, *state: int) -> Mapping:
    return load_from_local(filename, 'cpu', mmap=zipfile.is_zipfile(filename)).get('meta') or {}


def _state(path: str | Path) -> tuple[int, int]:
    """Return time of change and size of a file, the key of facts that are read once."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f'there is no checkpoint {str(path)!r} in {os.getcwd()}')
    state = os.stat(path)
    return state.st_mtime_ns, state.st_size


def _load(filename: Any, map_location: Any, mmap: bool, trusted: bool) -> Any:
    load = partial(torch.load, filename, map_location=map_location, mmap=mmap)
    try:
        with _safe_globals():
            return load(weights_only=True)
    except UnpicklingError as error:
        named = re.search(r'GLOBAL (\S+)', str(error))  # the rest is PyTorch's advice, to trust it
        reason = f'more than data, {named[1]}' if named else 'more than data'
        if not hasattr(torch.serialization, 'safe_globals'):
            reason += ' (as all of mmengine do, which PyTorch before 2.5 cannot tell from code)'
        if os.environ.get(ONLY_WEIGHTS, '0').lower() not in ('0', '', 'false', 'n', 'no'):
            raise ValueError(f'it holds {reason}, and {ONLY_WEIGHTS} is set') from error
        if not trusted:
            raise ValueError(
                f'it holds {reason}, so loading it can run any code in it. It comes from an '
                'address: download it, and name the file if you trust it'
            ) from error
        print_log(
            f'Warning: {filename} holds {reason}, so loading it can run any code in it. It is '
            f'trusted because you named it; {ONLY_WEIGHTS}=1 refuses it.',
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


def _check_content(content: object, filename: str) -> None:
    parts = {'': content}
    if isinstance(content, Mapping):
        parts = {
            ', as its state_dict,': content.get('state_dict', content),
            ', as its meta,': content.get('meta') or {},
        }
    for where, part in parts.items():
        if not isinstance(part, Mapping):
            raise UserError(
                f'{filename!r} is not a checkpoint of a model: it holds{where} a '
                f'{type(part).__name__} instead of values by name'
            )


@register_backend(BACKEND)
class WholeFileBackend(LocalBackend):
    """mmengine's local files, but whole or not at all, and none gone before its successor is there.

    ``CheckpointHook`` removes a checkpoint and then writes the next. Here it is removed after that:
    after the next one that a training can be resumed from, since the last of those still names the
    best checkpoint before. Nothing outside of the run's own folder is removed.

    Args:
        folder: That of the run.
    """

    # To be removed, by the folder of the run: mmengine makes a new backend for every file.
    _outlived_of: dict[Path, set[Path]] = {}

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).resolve()
        self._outlived = self._outlived_of.setdefault(self._folder, set())

    def put(self, obj: bytes, filepath: str | Path) -> None:
        path = Path(filepath)
        kind = path.stem.split('_')[0]
        for left in path.parent.glob(f'.{kind}_*{path.suffix}'):  # by a training killed here
            left.unlink(missing_ok=True)
        with whole_file(path) as temporary:
            temporary.write_bytes(obj)
        self._outlived.discard(path)
        is_best = path.name.startswith('best_')
        if not is_best or not path.with_name('last_checkpoint').is_file():
            for outlived in self._outlived:
                outlived.unlink(missing_ok=True)
            self._outlived.clear()

    def remove(self, filepath: str | Path) -> None:
        if Path(filepath).resolve().is_relative_to(self._folder):
            self._outlived.add(Path(filepath))


def use_safe_files(runner: Runner) -> None:
    """Have a Runner load and write its checkpoints by the functions above."""
    _load_safely()
    for hook in runner.hooks:
        if (
            isinstance(hook, CheckpointHook)
            and hook.backend_args is None
            and hook.file_client_args is None
            and '://' not in str(hook.out_dir or runner.work_dir)
        ):
            hook.backend_args = dict(backend=BACKEND, folder=str(hook.out_dir or runner.work_dir))


def _load_safely() -> None:
    """Replace the three functions by which mmengine reads checkpoints, wherever they are."""

    def load(file: Any, map_location: Any = None, **_) -> Any:  # of other addresses
        return _load(file, map_location, mmap=False, trusted=False)

    CheckpointLoader.register_scheme('', load_from_local, force=True)
    mmengine_checkpoint.load_url = load_from_address
    mmengine_checkpoint._safe_torch_load = load


def file_digest(path: str | Path) -> str:
    """Return 16 hexadecimal digits of a file's content, of its address if it is elsewhere."""
    if '://' in str(path):
        return hashlib.sha256(str(path).encode()).hexdigest()[:16]
    path = os.path.expanduser(path)
    return _digest_of(path, *_state(path))


@lru_cache(maxsize=64)
def _digest_of(path: str, *state: int) -> str:
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()[:16]
