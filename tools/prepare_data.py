"""Check an unpacked data set: which files it has, which are missing, and where to get them.

This command downloads nothing. It exits with status 1 if anything is missing or wrong.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table


def without_torch() -> None:
    """Have the package's modules found without its ``__init__``, which imports torch for seconds.

    What looks at folders needs neither that nor mmengine.
    """
    folder = Path(find_spec('mmcalib').origin).parent
    for name in ('mmcalib', 'mmcalib.datasets'):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split('.')[1:]))]
        sys.modules.setdefault(name, package)


without_torch()

from mmcalib.cli.parser import ToolParser  # noqa: E402
from mmcalib.datasets.unpacked_data_check import CHECKS, Report, check, source  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = ToolParser(description=__doc__, examples=['tinyimagenet data/tiny-imagenet-200'])
    parser.add_argument('name', choices=list(CHECKS), metavar='NAME', help=', '.join(CHECKS))
    parser.add_argument(
        'root', metavar='ROOT', help='folder of the data set, data_root in the configs'
    )
    return parser.parse_args()


def show(name: str, report: Report) -> None:
    """Print the counts as a table, then the problems, those of which there are many counted."""
    if report.rows:
        table = Table('', 'found', 'expected', '')
        for what, found, expected in report.rows:
            table.add_row(what, f'{found:,}', f'{expected:,}', 'ok' if found == expected else 'NO')
        Console().print(table)
    for line in report.lines():
        print(f'- {line}')
    if report.problems:
        print(f'{name}: {len(report.problems):,} problem(s). {source(name)}.')
    else:
        print(f'{name}: complete.')


def main() -> None:
    args = parse_args()
    report = check(args.name, args.root)
    show(args.name, report)
    sys.exit(1 if report.problems else 0)


if __name__ == '__main__':
    main()
