"""Export a trained model to ONNX, with its calibration, and compare it with PyTorch.

The file holds normalisation, network and calibration, folded or attached. It is written only if
onnxruntime predicts the probabilities that PyTorch does.
"""

import argparse

from mmcalib.cli.arguments import ConfigOptions
from mmcalib.cli.files import find_checkpoint
from mmcalib.cli.parser import ToolParser


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT --out model.onnx',
            'CONFIG CHECKPOINT --out model.onnx --size 512 512',
        ],
    )
    parser.add_argument('config', help='config file, of mmcalib, mmpretrain or mmseg')
    parser.add_argument('checkpoint', help='checkpoint to export, calibrated or not')
    parser.add_argument('--out', required=True, metavar='FILE.onnx', help='file to write')
    parser.add_argument('--overwrite', action='store_true', help='also if --out exists')
    parser.add_argument(
        '--logits', action='store_true', help='return logits in place of probabilities'
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
        help='take one image of this size alone (default: any batch and size that run)',
    )
    parser.add_argument(
        '--opset', type=int, default=17, help='version of ONNX operators (default: %(default)s)'
    )
    parser.add_argument(
        '--tolerance',
        type=float,
        default=1e-4,
        help='largest difference of a probability from PyTorch (default: %(default)s)',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace config values, such as model.test_cfg.mode=whole',
    )
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    # After the arguments, so that --help does not wait for the toolboxes.
    from mmcalib.export.export_onnx import check_onnx_file, export_onnx, report_in_words
    from mmcalib.runs.checkpoint_choice import check_checkpoint
    from mmcalib.runs.config import load_config

    with parser.ending_with_errors(ImportError, OSError, TypeError, ValueError):
        args.checkpoint = find_checkpoint(args.checkpoint)
        check_checkpoint(args.checkpoint)
        check_onnx_file(args.out, overwrite=args.overwrite)
        exported = export_onnx(
            load_config(args.config, args.cfg_options),
            args.checkpoint,
            args.out,
            logits=args.logits,
            size=args.size,
            fixed=args.fixed,
            opset=args.opset,
            tolerance=args.tolerance,
        )
    print(report_in_words(exported, args.out))


if __name__ == '__main__':
    main()
