"""Config and checkpoint of each member of an ensemble, as a command line names them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mmcalib.cli.files import find_checkpoint


def split_members(config: str, checkpoints: Sequence[str]) -> list[tuple[str, str]]:
    """Return config and checkpoint of each member.

    Args:
        config: A config, or ``CONFIG:CHECKPOINT`` of the first member.
        checkpoints: Each of the config, or with a config of its own as ``CONFIG:CHECKPOINT``. A
            work dir stands for its best checkpoint.

    Raises:
        ValueError: If there is no checkpoint, or one twice.
    """
    first, own = _split_pair(config)
    pairs = [(None, own)] if own else []
    pairs += [_split_pair(text) if '.py:' in text else (None, text) for text in checkpoints]
    members = [(given or first, find_checkpoint(checkpoint)) for given, checkpoint in pairs]
    if not members:
        raise ValueError(f'{config}: name a checkpoint')
    seen = [os.path.realpath(checkpoint) for _, checkpoint in members]
    twice = next((text for text in seen if seen.count(text) > 1), None)
    if twice:
        raise ValueError(f'{twice} is named twice and would count twice: name it once')
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
