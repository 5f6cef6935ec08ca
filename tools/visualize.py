"""Draw figures of tested runs, as PNG, PDF or SVG, from what their tests left.

tools/visualize.py reliability work_dirs/ce/digits work_dirs/mbls/digits --out diagram.pdf
tools/visualize.py risk work_dirs/ce/digits work_dirs/mbls/digits --overlay --out risk.png
tools/visualize.py boundary work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out curve.png
tools/visualize.py maps work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out maps.png
tools/visualize.py worst work_dirs/mbls/digit_scenes --out worst.png
tools/visualize.py images images.csv --out images.png
tools/visualize.py robustness work_dirs/ce/resnet14_cifar10_short/robustness --out boxes.png
"""

import argparse
from pathlib import Path

from mmcalib.corruption_names import SEVERITIES
from mmcalib.reports import robustness_plots, run_plots
from mmcalib.runs.command_line import ToolParser


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'kind',
        choices=['reliability', 'risk', 'boundary', 'maps', 'worst', 'images', 'robustness'],
        help='reliability diagrams; risk–coverage curves; ECE against the distance from the '
        'nearest boundary, of tests with per_distance=True; the images that all runs have drawn, '
        "below one another; each run's worst-calibrated images; images in the order of their "
        'scores, of the .csv file that an ImageScoreMetric leaves; or tests on corrupted images, '
        'of the folders that tools/test_robustness.py leaves',
    )
    parser.add_argument('runs', nargs='+', help='work dirs, or the .npz or .json files in them')
    parser.add_argument('--out', required=True, help='file to write')
    parser.add_argument(
        '--names', nargs='+', help='names of the runs (not for robustness); their loss unless given'
    )
    parser.add_argument(
        '--images', nargs='+', metavar='NAME', help='for maps and worst: only these files'
    )
    parser.add_argument('--overlay', action='store_true', help='all diagrams in one panel')
    parser.add_argument('--num-bins', type=int, help="of diagrams; the metric's by default")
    parser.add_argument('--equal-mass', action='store_true', help='bins of equal count')
    parser.add_argument(
        '--zoom', nargs=2, type=float, metavar=('LOW', 'HIGH'), help='part to enlarge, in percent'
    )
    parser.add_argument(
        '--figure',
        choices=robustness_plots.FIGURES,
        default='boxes',
        help='for robustness: boxes over corruptions by severity (default); lines of ECE and NLL '
        'before and after calibration; one image under all corruptions, with confidence maps',
    )
    parser.add_argument(
        '--severity', type=int, choices=SEVERITIES, help='for the sheet (default: 3 or the nearest)'
    )
    parser.add_argument(
        '--only', nargs='+', metavar='NAME',
        help="for robustness: only these checkpoints, by the legend's names, in this order",
    )  # fmt: skip
    parser.add_argument('--dpi', type=float, default=200, help='for a PNG (default: %(default)s)')
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    if args.kind == 'robustness' and args.names:
        parser.error('--names is not for robustness, whose folders have several checkpoints each')
    if args.kind != 'robustness' and args.only:
        parser.error('--only is for robustness alone')
    with parser.ending_with_errors(FileNotFoundError, ValueError):
        if args.kind == 'robustness':
            figure = robustness_plots.robustness_figure(
                args.runs, args.figure, severity=args.severity, only=args.only
            )
            write(figure, args)
            return
        names = run_plots.names_of(args.runs, args.names)
        if args.kind == 'reliability':
            figure = run_plots.reliability_figure(
                args.runs,
                names,
                num_bins=args.num_bins,
                equal_mass=args.equal_mass,
                overlay=args.overlay,
                zoom=args.zoom,
            )
        elif args.kind == 'risk':
            figure = run_plots.risk_coverage_figure(args.runs, names, overlay=args.overlay)
        elif args.kind == 'images':
            figure = run_plots.image_risk_figure(args.runs, names)
        elif args.kind == 'boundary':
            figure = run_plots.boundary_curve_figure(args.runs, names)
        else:
            figure = run_plots.confidence_map_figure(
                args.runs, names, worst=args.kind == 'worst', images=args.images
            )
        write(figure, args)


def write(figure, args: argparse.Namespace) -> None:
    Path(args.out).resolve().parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=args.dpi)
    print(args.out)


if __name__ == '__main__':
    main()
