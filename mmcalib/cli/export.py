"""Export a model and its calibration to ONNX, and compare its probabilities with PyTorch's.

The file holds normalization, the network and the calibration, folded or attached. The tool writes
it only if onnxruntime predicts the same probabilities as PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import CONFIG_HELP, add_config_options
from mmcalib.cli.parser import ToolParser


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of the command ``export``, which its help describes.

    Attributes:
        config: Config of the model.
        checkpoint: File with the weights, or a work dir for the best checkpoint in it.
        out: ONNX file to write.
        overwrite: Whether to replace an existing file.
        logits: Whether the file returns logits in place of probabilities.
        size: Height and width of an example of random pixels; None for the first test image.
        fixed: Whether the file takes a single image of the example's size, and nothing else.
        opset: Version of the ONNX operators; None for 18, or 17 by PyTorch before 2.6.
        tolerance: Largest difference of a probability from PyTorch.
        cfg_options: Dotted keys of the config and their new values.
    """

    config: str
    checkpoint: str
    out: str
    overwrite: bool = False
    logits: bool = False
    size: Sequence[int] | None = None
    fixed: bool = False
    opset: int | None = None
    tolerance: float = 1e-4
    cfg_options: dict | None = None


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT --out model.onnx',
            'CONFIG CHECKPOINT --out model.onnx --size 512 512',
        ],
    )
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        'checkpoint',
        help='checkpoint, calibrated or not; or a work dir for the best checkpoint in it',
    )
    parser.add_argument('--out', required=True, metavar='FILE.onnx', help='file to write')
    parser.add_argument('--overwrite', action='store_true', help='replace --out if it exists')
    parser.add_argument(
        '--logits', action='store_true', help='return logits instead of probabilities'
    )
    parser.add_argument(
        '--size',
        nargs=2,
        type=int,
        metavar=('HEIGHT', 'WIDTH'),
        help='trace the network on random pixels of this size (default: on the first test image)',
    )
    parser.add_argument(
        '--fixed',
        action='store_true',
        help='accept one image of this size only (default: any batch and size that work)',
    )
    parser.add_argument(
        '--opset',
        type=int,
        metavar='N',
        help='version of the ONNX operators (default: 18, or 17 by PyTorch before 2.6)',
    )
    parser.add_argument(
        '--tolerance',
        type=float,
        default=1e-4,
        metavar='DIFFERENCE',
        help='largest difference of a probability from PyTorch',
    )
    add_config_options(parser.add_argument_group('config'))
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> ExportOptions:
    """Return the options on a command line."""
    return ExportOptions(**vars(parser.parse_args(arguments)))
