"""One self-contained HTML page of several runs: tables, diagrams, sweeps and galleries."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from matplotlib.figure import Figure
from rich.progress import track

from mmcalib.reports import run_figures
from mmcalib.reports.collect import ReportedRun
from mmcalib.reports.formats import cells, header, others_left_out
from mmcalib.reports.tables import Table
from mmcalib.run_files import SWEEP
from mmcalib.visualization import draw_sweeps

SUFFIX = '.html'
DPI = 110
PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 16px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem;
       padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #444; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figcaption { color: #555; margin-bottom: .4rem; }
img { max-width: 100%; }
ul { color: #555; }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def build_page(
    tables: Sequence[Table],
    others: Mapping[str, Sequence[str]],
    folders: Sequence[str],
    *,
    title: str = 'Calibration report',
) -> str:
    """Return a page that needs no other file and no network.

    Each data set and network has its table, the reliability diagrams of one run of each loss, side
    by side and overlaid, and for segmentors the images that those runs share and the worst of each.
    Finished sweeps below the folders have their curves. A run without the files that a figure is
    drawn from is left out of it, and named below the table.

    Args:
        tables: Of :func:`mmcalib.reports.tables.tables_of`.
        others: What is in none of them, of :func:`mmcalib.reports.collect.collect_runs`.
        folders: Where to look for sweeps.
        title: Of the page.
    """
    parts = []
    for table in track(tables, 'Drawing', transient=True):
        drawn, notes = _figures(table)
        parts += [f'<h2>{escape(table.name)}</h2>', _table(table)]
        parts += [_list([*table.notes, *notes]), *drawn]
    paths = sorted({path for folder in folders for path in Path(folder).rglob(SWEEP)})
    if paths:
        parts.append('<h2>Sweeps</h2>')
    for path in paths:
        figure = draw_sweeps([json.loads(path.read_text(encoding='utf-8'))])
        parts.append(_image(figure, str(path.parent)))
    parts.append(_list(others_left_out(others)))
    return PAGE.substitute(title=escape(title), body='\n'.join(part for part in parts if part))


def _figures(table: Table) -> tuple[list[str], list[str]]:
    """Return the figures of a table, and notes of runs that lack what they are drawn from."""
    drawn, notes = [], []
    # Of each loss the first seed that has the files.
    statistics, maps = {}, {}
    for row in table.rows:
        for found, find in (
            (statistics, run_figures.find_statistics),
            (maps, run_figures.find_maps),
        ):
            run = next((run for run in row.runs if _has(run, find)), None)
            if run is not None:
                found[row.label] = run.path
    missing = [row.label for row in table.rows if row.label not in statistics]
    if missing:
        notes.append(f'No reliability diagram, since a file is missing: {", ".join(missing)}.')
    if statistics:
        paths, names = list(statistics.values()), list(statistics)
        drawn.append(
            _image(
                run_figures.draw_reliabilities(paths, names), 'Reliability diagrams, one run each'
            )
        )
        if len(paths) > 1:
            figure = run_figures.draw_reliabilities(paths, names, overlay=True)
            drawn.append(_image(figure, 'The same in one panel'))
    if maps:
        paths, names = list(maps.values()), list(maps)
        try:
            figure = run_figures.draw_maps(paths, names)
            drawn.append(_image(figure, 'Confidence maps, one run of each loss'))
        except ValueError as error:
            notes.append(f'No confidence maps: {error}.')
        for path, name in zip(paths, names, strict=True):
            if run_figures.find_maps(path).worst:
                figure = run_figures.draw_maps([path], [name], worst=True)
                drawn.append(_image(figure, f'Worst-calibrated test images, {name}'))
    return drawn, notes


def _has(run: ReportedRun, find) -> bool:
    try:
        find(run.path)
    except FileNotFoundError:
        return False
    return True


def _table(table: Table) -> str:
    def line(tag: str, texts: Sequence[str]) -> str:
        return f'<tr>{"".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)}</tr>'

    rows = [line('th', header(table)), *(line('td', cells(table, row)) for row in table.rows)]
    return '<table>\n' + '\n'.join(rows) + '\n</table>'


def _list(items: Sequence[str]) -> str:
    lines = '\n'.join(f'<li>{escape(item)}</li>' for item in items)
    return f'<ul>\n{lines}\n</ul>' if items else ''


def _image(figure: Figure, caption: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format='png', dpi=DPI)
    data = base64.b64encode(file.getvalue()).decode()
    width = round(figure.get_figwidth() * 96)
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption>'
        f'<img alt="{escape(caption)}" width="{width}" src="data:image/png;base64,{data}"></figure>'
    )
