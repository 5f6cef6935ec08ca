"""Export a model and its calibration to ONNX, and compare its probabilities with PyTorch's.

The file holds normalization, the network and the calibration, folded or attached. The tool writes
it only if onnxruntime predicts the same probabilities as PyTorch.
"""

from mmcalib.cli.arguments import CONFIG_HELP, add_config_options
from mmcalib.cli.parser import ToolParser


def main() -> None:
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
        '--opset', type=int, default=17, metavar='N', help='version of the ONNX operators'
    )
    parser.add_argument(
        '--tolerance',
        type=float,
        default=1e-4,
        metavar='DIFFERENCE',
        help='largest difference of a probability from PyTorch',
    )
    add_config_options(parser.add_argument_group('config'))
    args = parser.parse_args()

    # Takes seconds, which a help need not.
    from mmcalib.commands.export.command import export_onnx

    with parser.ending_with_errors():
        print(export_onnx(**vars(args)))


if __name__ == '__main__':
    main()
