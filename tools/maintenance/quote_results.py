"""Bring the numbers of README and docs in line with what was measured, in docs/results/*.json.

tools/report.py work_dirs/*/digits --out docs/results/digits.json
tools/maintenance/quote_results.py
"""

import argparse
from pathlib import Path

from quoted_numbers import read_measured, with_measured, written_pages

from mmcalib.cli.parser import ToolParser
from mmcalib.work_dir import whole_file

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('pages', nargs='*', type=Path, help='all of README and docs by default')
    parser.add_argument('--results', type=Path, default=ROOT / 'docs/results')
    args = parser.parse_args()
    with parser.ending_with_errors(FileNotFoundError, ValueError):
        measured = read_measured(args.results)
        for page in args.pages or written_pages(ROOT):
            old = page.read_text(encoding='utf-8')
            new = with_measured(old, measured)
            if new != old:
                with whole_file(page) as path:
                    path.write_text(new, encoding='utf-8')
                print(page)


if __name__ == '__main__':
    main()
