"""Configs, checkpoints and members of an ensemble, found by what a user calls them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mmcalib.errors import UserError, nearest, suggestion

STACKS = 'pip install "mmcalib[onedl]", or "mmcalib[openmmlab]" beside a classic OpenMMLab'
KINDS = ('.py', '.json', '.yaml', '.yml')  # of configs, by mmengine


class Member(NamedTuple):
    """A network of a model, by the paths of its config and its checkpoint."""

    config: str
    checkpoint: str


def package_folder(package: str, name: str) -> Path:
    """Return a folder that a package of OpenMMLab carries, such as its configs or tools.

    In a wheel it is below ``.mim``; in a checkout it stands beside the package.

    Raises:
        UserError: If there is no such package, or it comes without the folder.
    """
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.origin:
        raise UserError(f'there is no package {package!r}. For the toolboxes: {STACKS}')
    folder = Path(spec.origin).parent
    for place in (folder / '.mim' / name, folder.parent / name):
        if place.is_dir():
            return place
    raise UserError(
        f'the package {package!r} in {folder} comes without its {name}: install it with pip, or '
        'put its whole checkout on PYTHONPATH'
    )


def find_config(text: str | os.PathLike) -> str:
    """Return the path of a config file, which may be named as ``mmcalib::mbls/digits.py``.

    Raises:
        UserError: If there is none; the message names the nearest that exists, or what to install.
    """
    text = os.fspath(text)
    package, shipped, name = text.partition('::')
    if not shipped:
        if os.path.isfile(text):
            if Path(text).suffix not in KINDS:
                raise UserError(f'{text!r} is no config: name a .py file, then the checkpoint')
            return text
        raise UserError(f'there is no config {text!r} in {os.getcwd()}{_near(text)}')
    folder = package_folder(package, 'configs')
    if (folder / name).is_file():
        return str(folder / name)
    near = suggestion(text, [f'{package}::{each}' for each in _configs_in(folder)])
    raise UserError(f'there is no config {text!r}{near}')


def _near(text: str) -> str:
    """Return the end of an error about a config: one beside it, else one that mmcalib ships."""
    if near := _suggested(Path(text), Path(text).parent.glob('*.py')):
        return near
    name = Path(text).as_posix().rpartition('configs/')[2]
    with suppress(UserError):  # of a copy of the package without its configs
        if found := nearest(name, _configs_in(package_folder('mmcalib', 'configs'))):
            here = Path('configs', found)
            return f'; did you mean {here if here.is_file() else f"mmcalib::{found}"}?'
    return ''


def _configs_in(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob('*.py'))
    return [path.as_posix() for path in paths if path.parts[0] != '_base_']


def find_checkpoint(text: str) -> str:
    """Return a checkpoint: the file itself, or the best one of a work dir.

    Raises:
        UserError: If a folder has none, or several, as its best.
    """
    if not os.path.isdir(text):
        return text
    best = sorted(Path(text).glob('best_*.pth'))
    if len(best) == 1:
        return str(best[0])
    found = sorted(Path(text).glob('*.pth'))
    if not found:
        raise UserError(f'the folder {text!r} has no checkpoint: name one, a .pth file')
    many = 'several best checkpoints' if best else 'no best checkpoint'
    raise UserError(f'the folder {text!r} has {many}: name one of {_listed(found)}')


def other_checkpoints(text: str) -> str:
    """Return the end of an error about a checkpoint that does not exist: those beside it."""
    found = sorted(Path(text).parent.glob('*.pth'))
    near = _suggested(Path(text), found)
    return near or (f'; there are {_listed(found)}' if found else '')


def _suggested(path: Path, others: Iterable[Path]) -> str:
    """Return the suggestion of another file in the folder of one that does not exist."""
    near = nearest(path.name, [other.name for other in others])
    return f'; did you mean {path.with_name(near)}?' if near else ''


def _listed(paths: Iterable[Path]) -> str:
    return ', '.join(map(str, paths))


def split_members(config: str, checkpoints: Sequence[str]) -> list[Member]:
    """Return config and checkpoint of each member.

    Args:
        config: A config, or ``CONFIG:CHECKPOINT`` of the first member.
        checkpoints: Each of the config, or with a config of its own as ``CONFIG:CHECKPOINT``. A
            work dir stands for its best checkpoint.

    Raises:
        UserError: If there is no checkpoint, or one twice.
    """
    first, own = _split_pair(config)
    pairs = [(None, own)] if own else []
    pairs += [_split_pair(text) if '.py:' in text else (None, text) for text in checkpoints]
    members = [Member(given or first, find_checkpoint(path)) for given, path in pairs]
    if not members:
        raise UserError(f'{config}: name a checkpoint')
    seen = [os.path.realpath(member.checkpoint) for member in members]
    twice = next((text for text in seen if seen.count(text) > 1), None)
    if twice:
        raise UserError(f'{twice} is named twice and would count twice: name it once')
    return members


def _split_pair(text: str) -> tuple[str, str | None]:
    config, found, checkpoint = text.partition('.py:')
    return (f'{config}.py', checkpoint) if found else (text, None)


def tell_checkpoints_from_images(
    config: str, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the checkpoints and the images among the arguments after a config.

    The first is a checkpoint unless that of the config is named with it, and so are those that end
    in ``.pth`` or have a config of their own as ``CONFIG.py:CHECKPOINT``.
    """
    own = 0 if '.py:' in config else 1
    checkpoints, images = list(arguments[:own]), []
    for text in arguments[own:]:
        (checkpoints if text.endswith('.pth') or '.py:' in text else images).append(text)
    return checkpoints, images
