"""Members of a model: configs and checkpoints, found by what a user calls them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mmcalib.errors import UserError

STACKS = 'pip install "mmcalib[onedl]", or "mmcalib[openmmlab]" beside a classic OpenMMLab'
CONFIG_SUFFIXES = ('.py', '.json', '.yaml', '.yml')  # that mmengine reads


class Member(NamedTuple):
    """A network of a model, by the paths of its config and its checkpoint."""

    config: str
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Options of a mean: its members, the views of an image, and passes with dropout.

    Attributes:
        members: Config and checkpoint of each network.
        tta: Whether to average over views of each image.
        tta_scales: Scales of the views; None for those of the config.
        mc_dropout: Number of passes with random dropout, 0 for none.
        dropout_seed: Seed of the dropout.
        temperature: File with the temperature of this mean, None to not scale it.
    """

    members: tuple[Member, ...]
    tta: bool = False
    tta_scales: Sequence[float] | None = None
    mc_dropout: int = 0
    dropout_seed: int = 0
    temperature: str | None = None

    @property
    def has_views(self) -> bool:
        """Whether each image is predicted in several views."""
        return self.tta or self.tta_scales is not None


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
    for candidate in (folder / '.mim' / name, folder.parent / name):
        if candidate.is_dir():
            return candidate
    raise UserError(
        f'the package {package!r} in {folder} comes without its {name}: install it with pip, or '
        'put its whole checkout on PYTHONPATH'
    )


def find_config(text: str | os.PathLike) -> str:
    """Return the path of a config file, which may be named as ``mmcalib::mbls/digits.py``.

    Raises:
        UserError: If there is none, or its package is not installed.
    """
    text = os.fspath(text)
    package, separator, name = text.partition('::')
    if separator:
        path = package_folder(package, 'configs') / name
        if path.is_file():
            return str(path)
        raise UserError(f'there is no config {text!r}: {path.parent} does not have it')
    if not os.path.isfile(text):
        message = f'there is no config {text!r} in {os.getcwd()}'
        name = text.removeprefix('configs/')  # as a page names it, whose reader has a clone
        if name != text and (package_folder('mmcalib', 'configs') / name).is_file():
            message += f': name it mmcalib::{name} where you have no clone'
        raise UserError(message)
    if Path(text).suffix not in CONFIG_SUFFIXES:
        raise UserError(f'{text!r} is no config: name a .py file, then the checkpoint')
    return text


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
    checkpoints = sorted(Path(text).glob('*.pth'))
    if not checkpoints:
        raise UserError(f'the folder {text!r} has no checkpoint: name one, a .pth file')
    problem = 'several best checkpoints' if best else 'no best checkpoint'
    names = ', '.join(str(path) for path in checkpoints)
    raise UserError(f'the folder {text!r} has {problem}: name one of {names}')


def split_members(config: str, checkpoints: Sequence[str]) -> list[Member]:
    """Return config and checkpoint of each member.

    Args:
        config: A config, or ``CONFIG:CHECKPOINT`` of the first member.
        checkpoints: A checkpoint of the config each, or of another one as ``CONFIG:CHECKPOINT``. A
            work dir stands for its best checkpoint.

    Raises:
        UserError: If there is no checkpoint, or one twice.
    """
    first_config, first_checkpoint = split_pair(config)
    members = []
    if first_checkpoint is not None:
        members.append(Member(first_config, find_checkpoint(first_checkpoint)))
    for text in checkpoints:
        if '.py:' in text:
            own_config, checkpoint = split_pair(text)
            members.append(Member(own_config, find_checkpoint(checkpoint)))
        else:
            members.append(Member(first_config, find_checkpoint(text)))
    if not members:
        raise UserError(f'{config}: name a checkpoint')
    paths = set()
    for member in members:
        path = os.path.realpath(member.checkpoint)
        if path in paths:
            raise UserError(f'{path} is named twice and would count twice: name it once')
        paths.add(path)
    return members


def split_pair(text: str) -> tuple[str, str | None]:
    """Return config and checkpoint of ``CONFIG.py:CHECKPOINT``, None without a checkpoint."""
    stem, separator, checkpoint = text.partition('.py:')
    return (f'{stem}.py', checkpoint) if separator else (text, None)


def tell_checkpoints_from_images(
    config: str, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the checkpoints and the images among the arguments after a config.

    The first is a checkpoint unless that of the config is named with it, and so are those that end
    in ``.pth`` or have a config of their own as ``CONFIG.py:CHECKPOINT``.
    """
    has_checkpoint = '.py:' in config
    checkpoints = []
    images = []
    for index, text in enumerate(arguments):
        is_first_checkpoint = index == 0 and not has_checkpoint
        if is_first_checkpoint or text.endswith('.pth') or '.py:' in text:
            checkpoints.append(text)
        else:
            images.append(text)
    return checkpoints, images
