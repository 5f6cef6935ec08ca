"""Say which figures of docs are older than the code that they show, and what measured each result.

A figure shows losses, scalings and metrics, drawn by mmcalib.visualization. Commits to these
packages make a figure older than its code. ``docs/figures/draw.sh`` notes in
``docs/figures/drawn.json`` by which commit it drew a figure. The files of docs/results name the
version of mmcalib that tested each of their runs.

Example: figure_ages.py
"""

import json
import subprocess
from pathlib import Path

import mmcalib
from mmcalib.cli.parser import ToolParser
from mmcalib.tables import TextTable

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / 'docs/figures'
DRAWN = FIGURES / 'drawn.json'
SHOWN = ('mmcalib/losses', 'mmcalib/metrics', 'mmcalib/posthoc', 'mmcalib/visualization')


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument(
        '--drawn', metavar='FIGURE', help='note that the present code has drawn this figure'
    )
    args = parser.parse_args()
    drawn = json.loads(DRAWN.read_text())
    if args.drawn:
        commit = git('rev-parse', '--short=8', 'HEAD')
        drawn[args.drawn] = {'commit': commit, 'version': mmcalib.__version__}
        DRAWN.write_text(json.dumps(drawn, indent=1, sort_keys=True) + '\n')
    else:
        print(table_of_figures(drawn))
        print()
        print(table_of_results())


def table_of_figures(drawn):
    figures = [path.name for path in FIGURES.iterdir() if path.suffix in {'.png', '.jpg'}]
    rows = []
    for figure in sorted(figures):
        if figure not in drawn:
            rows.append([figure, '?', 'unknown: draw.sh has not drawn it'])
            continue
        code = drawn[figure]
        changes = int(git('rev-list', '--count', f'{code["commit"]}..HEAD', '--', *SHOWN))
        age = f'{changes} changes since' if changes else 'as it is now'
        rows.append([figure, code['version'], age])
    return TextTable(['figure', 'drawn by', 'code that it shows'], rows, alignment='lll').write()


def table_of_results():
    rows = []
    for path in sorted(ROOT.glob('docs/results/*.json')):
        content = json.loads(path.read_text())
        tables = content if isinstance(content, list) else []
        runs = [run for table in tables for row in table['rows'] for run in row['runs']]
        versions = sorted({run['version'] for run in runs if 'version' in run})
        counts = [
            f'{sum(run.get("version") == version for run in runs)} by {version}'
            for version in versions
        ]
        if counts:
            rows.append([path.name, ', '.join(counts)])
    return TextTable(['results', 'runs'], rows, alignment='ll').write()


def git(*arguments):
    """Return what git prints, without the end of its last line."""
    return subprocess.check_output(['git', *arguments], cwd=ROOT, text=True).strip()


if __name__ == '__main__':
    main()
