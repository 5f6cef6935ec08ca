"""One self-contained HTML page of several runs: tables, diagrams, sweeps and galleries."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_rows
from mmcalib.reports import figures
from mmcalib.reports.formats import cells, header, others_left_out
from mmcalib.reports.tables import Table

SUFFIX = '.html'
DPI = 110
DPI_OF_FILES = 200
LONGEST = 60  # letters of a caption, which may have a long path, in the name of a file
SHIFT_FIGURES = {
    'boxes': 'Corruptions by severity',
    'lines': 'Mean over corruptions by severity',
    'sheet': 'One image under all corruptions',
}
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
summary { cursor: pointer; }
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
    folder: str | Path | None = None,
    figure_format: str = 'pdf',
) -> str:
    """Return a page that needs no other file and no network.

    Each data set and network has its table, those of single classes where a test measured them, the
    reliability diagrams of one run of each loss, side
    by side and overlaid, and for segmentors the images that those runs share and the worst of each.
    Sweeps below the folders have their curves, and tests on shifted data theirs. What a figure
    cannot be drawn from, because it is missing, broken or not yet far enough, is left out of it and
    named.

    Args:
        tables: Of :func:`mmcalib.reports.tables.tables_of`.
        others: What is in none of them, of :func:`mmcalib.reports.runs.find_runs`.
        folders: Where to look for sweeps.
        title: Of the page.
        folder: Into which the page's figures are also written; None for none.
        figure_format: ``'pdf'``, ``'svg'`` or ``'png'``, of the files there.
    """
    image = FigureWriter(folder and Path(folder), figure_format)
    parts = []
    for table in track(tables, 'Drawing', transient=True, console=Console(stderr=True)):
        runs = [run for row in table.rows for run in row.runs]
        clean = not any(run.kind or run.record.get('split') == 'val' for run in runs)
        drawn, notes = _figures(table, image) if clean else ([], [])
        parts += [f'<h2>{escape(table.name)}</h2>', _table(table)]
        parts += [_list([*table.notes, *notes]), *drawn]
    parts += _of_folders('Sweeps', 'sweep', folders, image)
    parts += _of_folders('Under shift', 'robustness', folders, image)
    parts.append(_list(others_left_out(others)))
    return PAGE.substitute(title=escape(title), body='\n'.join(part for part in parts if part))


def _of_folders(title: str, kind: str, folders: Sequence[str], image: FigureWriter) -> list[str]:
    """Return the figures of the sweeps, or of the tests on shifted data, below some folders."""
    paths = {
        path.parent for root in folders for path in Path(root).rglob(figures.FIGURES[kind].file)
    }
    parts = [f'<h2>{title}</h2>'] if paths else []
    for path in sorted(paths):
        try:
            found = {str(path): figures.load(kind, path)}
            if kind == 'sweep':
                parts.append(image(figures.draw(kind, found), f'Sweep, {path}'))
                continue
            for name in figures.shift_figures(found[str(path)]):
                figure = figures.draw(kind, found, figure=name)
                parts.append(image(figure, f'{SHIFT_FIGURES[name]}, {path}'))
        except ValueError as error:
            parts.append(_list([f'{path} is not drawn: {error}.']))
    return parts


def _figures(table: Table, image: FigureWriter) -> tuple[list[str], list[str]]:
    """Return the figures of a table, and notes on those that cannot be drawn."""
    statistics, notes = _first_of_each(table, 'reliability', 'reliability diagram')
    maps, broken = _first_of_each(table, 'maps', None)
    notes += broken
    by_distance = {k: each for k, each in statistics.items() if each.distance_bins is not None}
    drawn = _class_tables(statistics)
    for caption, kind, found, options in (
        ('Reliability diagrams, one run each', 'reliability', statistics, {}),
        (
            'The same in one panel',
            'reliability',
            statistics if len(statistics) > 1 else {},
            dict(overlay=True),
        ),
        (
            'ECE against the distance from the nearest boundary, one run each',
            'boundary',
            by_distance,
            {},
        ),
        ('Confidence maps, one run of each loss', 'maps', maps, {}),
        *(
            (f'Worst-calibrated test images, {name}', 'worst', {name: each}, {})
            for name, each in maps.items()
            if each.worst
        ),
    ):
        try:
            if found:
                drawn.append(image(figures.draw(kind, found, **options), caption))
        except ValueError as error:
            notes.append(f'Not drawn, {caption[0].lower()}{caption[1:]}: {error}.')
    return drawn, notes


def _class_tables(runs: Mapping[str, CalibrationStatistics]) -> list[str]:
    """Return, for each run that was tested so, the calibration of each predicted class."""
    tables = []
    for label, statistics in runs.items():
        if statistics.class_bins is not None:
            headings, *rows = stratum_rows(statistics.class_bins, statistics.classes)
            title = escape(f'Each predicted class, one run of {label}')
            text = _rows(['predicted class', *headings], rows)
            tables.append(f'<details><summary>{title}</summary>\n{text}\n</details>')
    return tables


def _first_of_each(table: Table, kind: str, what: str | None) -> tuple[dict, list[str]]:
    """Return what the first run of each row with a whole file left, and notes of the others.

    Args:
        table: The rows.
        kind: Of the figure that is drawn of the file.
        what: It is, where it is said to be missing if no run of a row has a file; None for what
            most runs do not have.
    """
    found, notes = {}, []
    for row in table.rows:
        for run in row.runs:
            try:
                found[row.label] = figures.load(kind, run.path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                notes.append(f'{error}.')
                continue
            break
    missing = [row.label for row in table.rows if row.label not in found]
    if missing and what:
        why = 'calibration was not measured, or the file is missing'
        notes.append(f'No {what}, since {why}: {", ".join(missing)}.')
    return found, notes


def _table(table: Table) -> str:
    return _rows(header(table), [cells(table, row) for row in table.rows])


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, texts: Sequence[str]) -> str:
        return f'<tr>{"".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)}</tr>'

    lines = [line('th', headings), *(line('td', row) for row in rows)]
    return '<table>\n' + '\n'.join(lines) + '\n</table>'


def _list(items: Sequence[str]) -> str:
    lines = '\n'.join(f'<li>{escape(item)}</li>' for item in items)
    return f'<ul>\n{lines}\n</ul>' if items else ''


@dataclass
class FigureWriter:
    """Makes a figure a part of the page and, if there is a folder, a file in it.

    Attributes:
        folder: The folder, None to write no files.
        suffix: Of the files, such as ``'pdf'``.
        count: How many figures there have been.
    """

    folder: Path | None
    suffix: str
    count: int = 0

    def __call__(self, figure: Figure, caption: str) -> str:
        """Return the part of the page for a figure."""
        self.count += 1
        if self.folder:
            name = re.sub(r'\W+', '_', caption).strip('_').lower()
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f'{self.count:02}_{name[:LONGEST]}.{self.suffix}'
            figure.savefig(path, dpi=DPI_OF_FILES)
        file = io.BytesIO()
        figure.savefig(file, format='png', dpi=DPI)
        data = base64.b64encode(file.getvalue()).decode()
        width = round(figure.get_figwidth() * 96)
        return (
            f'<figure><figcaption>{escape(caption)}</figcaption><img alt="{escape(caption)}" '
            f'width="{width}" src="data:image/png;base64,{data}"></figure>'
        )
