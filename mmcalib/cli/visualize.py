"""Draw figures of tested runs as PNG, PDF or SVG."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmcalib.choices import ROBUSTNESS_FIGURES
from mmcalib.cli.options import Options
from mmcalib.cli.parser import ToolParser

KIND_DESCRIPTIONS = {
    'reliability': 'reliability diagrams',
    'by-image': 'accuracy of each segmented image against its mean confidence',
    'risk': 'risk–coverage curves',
    'boundary': 'ECE by distance from the nearest boundary, for tests with per_distance=True',
    'maps': 'confidence maps: the images that all runs have drawn, below one another',
    'worst': 'confidence maps: the worst-calibrated images of each run',
    'images': 'images in the order of their scores, from the .csv file of an ImageScoreMetric',
    'robustness': 'tests on corrupted images, from the work dirs of the command robustness',
}


def add_file_arguments(parser: ToolParser) -> None:
    """Add the files that are read and written."""
    parser.add_argument('paths', nargs='+', metavar='RUN', help='a work dir, or the file in it')
    parser.add_argument('--out', required=True, metavar='FILE', help='file to write')
    parser.add_argument('--dpi', type=float, default=200, help='resolution of a PNG')


def add_drawing_arguments(parser: ToolParser, kind: str) -> None:
    """Add the options that a kind of figure has beside those of all kinds."""
    if kind in ('reliability', 'risk'):
        parser.add_argument('--overlay', action='store_true', help='draw all in one panel')
    if kind in ('maps', 'worst'):
        parser.add_argument('--images', nargs='+', metavar='NAME', help='draw only these files')
    if kind == 'reliability':
        parser.add_argument(
            '--num-bins', type=int, metavar='N', help="number of bins (default: the metric's)"
        )
        parser.add_argument(
            '--equal-mass', action='store_true', help='bins with equal numbers of predictions'
        )
        parser.add_argument(
            '--zoom',
            nargs=2,
            type=float,
            metavar=('LOW', 'HIGH'),
            help='range of confidences to enlarge, in percent',
        )
        parser.add_argument(
            '--scale',
            choices=['linear', 'logit'],
            default='linear',
            help='logit tells 99 from 99.9 %%, as pixels need',
        )
        parser.add_argument(
            '--of-class',
            type=class_or_predicted,
            metavar='N',
            help='draw the share of the labels N against the probability of this class, or of this '
            "one of several labels; 'predicted' for accuracy and confidence (default: 1 of two "
            'classes, else predicted)',
        )
    if kind == 'robustness':
        parser.add_argument(
            '--figure',
            choices=ROBUSTNESS_FIGURES,
            default='boxes',
            help='boxes over corruptions by severity, or lines of the mean ECE and NLL',
        )
        parser.add_argument(
            '--only',
            nargs='+',
            metavar='NAME',
            help='draw only these checkpoints, by their names in the legend',
        )


def class_or_predicted(text: str) -> int | str:
    """Return the number of a class, or ``'predicted'``."""
    if text == 'predicted':
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"must be the number of a class or 'predicted', got {text}"
        )
    return int(text)


def refuse_unknown(parser: ToolParser, kind: str, unknown: Sequence[str]) -> None:
    """End with an error of unknown arguments, which names the kinds that have the first one."""
    kind_parsers = parser._subparsers._group_actions[0].choices
    kinds = [
        name
        for name, kind_parser in kind_parsers.items()
        if any(option.startswith(unknown[0]) for option in kind_parser._option_string_actions)
    ]
    message = f'unrecognized arguments: {" ".join(unknown)}'
    if kinds:
        message += f', of the kind {" or ".join(kinds)}'
    kind_parsers[kind].error(message)


@dataclass(frozen=True, kw_only=True)
class VisualizeOptions(Options):
    """Options of the command ``visualize``, which its help describes.

    Attributes:
        kind: Kind of the figure, a key of :data:`KIND_DESCRIPTIONS`.
        paths: Work dirs of the runs, or the files in them.
        out: File to write, whose suffix is its format.
        dpi: Resolution of a PNG, in pixels per inch.
        names: Name of each run, None for its loss and seed.
        drawing: Options of this kind of figure alone, by their names.
    """

    examples = (
        'reliability work_dirs/ce/digits work_dirs/mbls/digits --out diagram.pdf',
        'risk work_dirs/ce/digits work_dirs/mbls/digits --overlay --out risk.png',
        'boundary work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out curve.png',
        'maps work_dirs/ce/digit_scenes work_dirs/mbls/digit_scenes --out maps.png',
        'worst work_dirs/mbls/digit_scenes --out worst.png',
        'images images.csv --out images.png',
        'robustness work_dirs/ce/resnet14_cifar10_short/robustness --out boxes.png',
    )
    runs = False

    kind: str
    paths: Sequence[str]
    out: str
    dpi: float = 200
    names: Sequence[str] | None = None
    drawing: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def add_arguments(cls, parser: ToolParser) -> None:
        """Give a parser one of its own for each kind of figure."""
        kind_parsers = parser.add_subparsers(dest='kind', required=True, metavar='KIND')
        for kind, description in KIND_DESCRIPTIONS.items():
            kind_parser = kind_parsers.add_parser(
                kind, help=description, description=f'Draw {description}.', runs=False
            )
            add_file_arguments(kind_parser)
            # Names are of runs, and a work dir of tests under shift has several models.
            if kind != 'robustness':
                kind_parser.add_argument(
                    '--names',
                    nargs='+',
                    metavar='NAME',
                    help='names of the runs (default: their losses and seeds)',
                )
            add_drawing_arguments(kind_parser, kind)

    @classmethod
    def parse(cls, parser: ToolParser, arguments: Sequence[str]) -> VisualizeOptions:
        """Return the options on a command line, or end with the kind that has an unknown option."""
        namespace, unknown = parser.parse_known_args(arguments)
        values = vars(namespace)
        if unknown:
            refuse_unknown(parser, values['kind'], unknown)
        return cls(
            kind=values.pop('kind'),
            paths=values.pop('paths'),
            out=values.pop('out'),
            dpi=values.pop('dpi'),
            names=values.pop('names', None),
            drawing=values,
        )
