"""Draw figures of tested runs as PNG, PDF or SVG."""

import argparse

from mmcalib.cli.parser import ToolParser
from mmcalib.names import ROBUSTNESS_FIGURES

KINDS = {
    'reliability': 'reliability diagrams',
    'by-image': 'accuracy of each segmented image against its mean confidence',
    'risk': 'risk–coverage curves',
    'boundary': 'ECE by distance from the nearest boundary, for tests with per_distance=True',
    'maps': 'confidence maps: the images that all runs have drawn, below one another',
    'worst': 'confidence maps: the worst-calibrated images of each run',
    'images': 'images in the order of their scores, from the .csv file of an ImageScoreMetric',
    'robustness': 'tests on corrupted images, from the work dirs of tools/test_robustness.py',
}


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(
        runs=False,
        description=__doc__,
        examples=[
            'reliability work_dirs/ce/digits work_dirs/mbls/digits --out diagram.pdf',
            'risk work_dirs/ce/digits work_dirs/mbls/digits --overlay --out risk.png',
            'boundary work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out curve.png',
            'maps work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out maps.png',
            'worst work_dirs/mbls/digit_scenes --out worst.png',
            'images images.csv --out images.png',
            'robustness work_dirs/ce/resnet14_cifar10_short/robustness --out boxes.png',
        ],
    )
    commands = parser.add_subparsers(dest='kind', required=True, metavar='KIND')
    of = {}
    for kind, text in KINDS.items():
        of[kind] = commands.add_parser(kind, help=text, description=f'Draw {text}.', runs=False)
        add = of[kind].add_argument
        add('paths', nargs='+', metavar='RUN', help='a work dir, or the file in it')
        add('--out', required=True, metavar='FILE', help='file to write')
        add('--dpi', type=float, default=200, help='resolution of a PNG')
        if kind != 'robustness':  # a work dir of which has several models
            text = 'names of the runs (default: their losses and seeds)'
            add('--names', nargs='+', metavar='NAME', help=text)
    for kind in ('reliability', 'risk'):
        of[kind].add_argument('--overlay', action='store_true', help='draw all in one panel')
    for kind in ('maps', 'worst'):
        text = 'draw only these files'
        of[kind].add_argument('--images', nargs='+', metavar='NAME', help=text)
    add = of['reliability'].add_argument
    add('--num-bins', type=int, metavar='N', help="number of bins (default: the metric's)")
    add('--equal-mass', action='store_true', help='bins with equal numbers of predictions')
    text = 'range of confidences to enlarge, in percent'
    add('--zoom', nargs=2, type=float, metavar=('LOW', 'HIGH'), help=text)
    text = 'logit tells 99 from 99.9 %%, as pixels need'
    add('--scale', choices=['linear', 'logit'], default='linear', help=text)
    add = of['robustness'].add_argument
    text = 'boxes over corruptions by severity, or lines of the mean ECE and NLL'
    add('--figure', choices=ROBUSTNESS_FIGURES, default='boxes', help=text)
    text = 'draw only these checkpoints, by their names in the legend'
    add('--only', nargs='+', metavar='NAME', help=text)
    args, unknown = parser.parse_known_args()
    if unknown:
        kinds = [kind for kind in KINDS if f'[{unknown[0]}' in of[kind].format_usage()]
        of[args.kind].error(
            f'unrecognized arguments: {" ".join(unknown)}'
            + f', of the kind {" or ".join(kinds)}' * bool(kinds)
        )
    return parser, args


def main() -> None:
    parser, args = parse_args()
    # Takes seconds, which a help need not.
    from mmcalib.options import check_number
    from mmcalib.reports import figures
    from mmcalib.visualization.style import save_figure

    options = vars(args)
    out, dpi = options.pop('out'), options.pop('dpi')
    with parser.ending_with_errors():
        check_number('--dpi', dpi, least=1)
        save_figure(figures.figure(**options), out, dpi=dpi)
    print(out)


if __name__ == '__main__':
    main()
