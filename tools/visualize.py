"""Draw figures of tested runs as PNG, PDF or SVG.

reliability  reliability diagrams
by-image     accuracy of each segmented image against its mean confidence
risk         risk–coverage curves
boundary     ECE by distance from the nearest boundary, for tests with per_distance=True
maps         confidence maps: the images that all runs have drawn, below one another
worst        confidence maps: the worst-calibrated images of each run
images       images in the order of their scores, from the .csv file of an ImageScoreMetric
robustness   tests on corrupted images, from the folders that tools/test_robustness.py writes
"""

import argparse

from mmcalib.cli.names import ROBUSTNESS_FIGURES
from mmcalib.cli.parser import ToolParser

# Of some kinds of figures; the others refuse them.
OPTIONS = ('images', 'overlay', 'num_bins', 'equal_mass', 'zoom', 'scale', 'figure', 'only')


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
    parser.add_argument(
        'kind',
        choices=[line.split()[0] for line in __doc__.splitlines()[2:]],
        help='kind of figure, see above',
    )
    parser.add_argument('runs', nargs='+', help='work dirs, or .npz, .json or .csv files in them')
    parser.add_argument('--out', required=True, metavar='FILE', help='file to write')
    parser.add_argument(
        '--names',
        nargs='+',
        metavar='NAME',
        help='names of the runs, except for robustness (default: their losses and seeds)',
    )
    parser.add_argument(
        '--images', nargs='+', metavar='NAME', help='for maps and worst: draw only these files'
    )
    parser.add_argument(
        '--overlay', action='store_true', help='for reliability and risk: draw all in one panel'
    )
    parser.add_argument(
        '--num-bins',
        type=int,
        metavar='N',
        help="for reliability: number of bins (default: the metric's)",
    )
    parser.add_argument(
        '--equal-mass',
        action='store_true',
        help='for reliability: bins with equal numbers of predictions',
    )
    parser.add_argument(
        '--zoom',
        nargs=2,
        type=float,
        metavar=('LOW', 'HIGH'),
        help='for reliability: range of confidences to enlarge, in percent',
    )
    parser.add_argument(
        '--scale',
        choices=['linear', 'logit'],
        help='for reliability: logit tells 99 from 99.9 %%, as pixels need (default: linear)',
    )
    parser.add_argument(
        '--figure',
        choices=ROBUSTNESS_FIGURES,
        help='for robustness: boxes over corruptions by severity (default); lines of ECE and NLL '
        'before and after calibration',
    )
    parser.add_argument(
        '--only', nargs='+', metavar='NAME',
        help='for robustness: draw only these checkpoints, by their names in the legend',
    )  # fmt: skip
    parser.add_argument('--dpi', type=float, default=200, help='resolution of a PNG')
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    # Takes seconds, which a help need not.
    from mmcalib.checks import UserError, check_number
    from mmcalib.reports import figures
    from mmcalib.visualization.style import save_figure

    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name)}
    with parser.ending_with_errors():
        check_number('--dpi', args.dpi, least=1)
        if args.kind == 'robustness' and args.names:
            raise UserError('--names is not for robustness, whose folders have several each')
        figure = figures.figure(args.kind, args.runs, args.names, **options)
        save_figure(figure, args.out, dpi=args.dpi)
    print(args.out)


if __name__ == '__main__':
    main()
