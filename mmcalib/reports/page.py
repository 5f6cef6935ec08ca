"""One self-contained HTML page of several runs: tables, diagrams, sweeps and tests under shift."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from mmcalib import __version__
from mmcalib.metrics.strata import stratum_rows
from mmcalib.reports import figures
from mmcalib.reports.formats import cells, header, others_left_out, table_text
from mmcalib.reports.tables import Table

DPI = 110
DPI_OF_FILES = 200
LONGEST = 60  # letters of a caption, which may have a long path, in the name of a file
SHIFT_FIGURES = {
    'boxes': 'Corruptions by severity',
    'lines': 'Mean over corruptions by severity',
}
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
)


def page_of(
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
    reliability diagrams of one run of each loss, and for segmentors the images that those runs
    share and the worst of each. Sweeps below the folders have their curves, and tests on shifted
    data theirs. What a figure cannot be drawn from, because it is missing, broken or not yet far
    enough, is left out of it and named.

    Args:
        tables: Of :func:`mmcalib.reports.tables.tables_of`.
        others: What is in none of them, of :func:`mmcalib.reports.runs.find_runs`.
        folders: Where to look for sweeps.
        title: Of the page.
        folder: Into which the page's figures are also written; None for none.
        figure_format: ``'pdf'``, ``'svg'`` or ``'png'``, of the files there.
    """
    sections = []
    for table in track(tables, 'Drawing', transient=True, console=Console(stderr=True)):
        runs = [run for row in table.rows for run in row.runs]
        clean = not any(run.kind or run.record.split == 'val' for run in runs)
        section = _section_of(table) if clean else {}
        rows = [cells(table, row) for row in table.rows]
        text = table_text(header(table), rows, 'html')
        notes = [*table.notes, *section.get('notes', ())]
        sections.append({**section, 'name': table.name, 'table': text, 'notes': notes})
    sections += _of_folders(folders)
    count = 0
    for section in sections:
        drawn = []
        for caption, figure in section.get('figures', ()):
            count += 1
            if folder:
                name = re.sub(r'\W+', '_', caption).strip('_').lower()
                Path(folder).mkdir(parents=True, exist_ok=True)
                path = Path(folder, f'{count:02}_{name[:LONGEST]}.{figure_format}')
                figure.savefig(path, dpi=DPI_OF_FILES)
            drawn.append(_embedded(figure, caption))
        section['figures'] = drawn
    return TEMPLATES.get_template('page.html').render(
        title=title,
        sections=sections,
        others=others_left_out(others),
        version=__version__,
        date=datetime.now().astimezone().isoformat(' ', 'minutes'),
    )


def _embedded(figure: Figure, caption: str) -> dict:
    file = io.BytesIO()
    figure.savefig(file, format='png', dpi=DPI)
    data = base64.b64encode(file.getvalue()).decode()
    return {'caption': caption, 'data': data, 'width': round(figure.get_figwidth() * 96)}


def _section_of(table: Table) -> dict:
    """Return the figures of a table, its tables of classes, and notes on what is not drawn."""
    statistics, notes = _first_of_each(table, 'reliability')
    if missing := [row.label for row in table.rows if row.label not in statistics]:
        why = 'calibration was not measured, or the file is missing'
        notes.append(f'No reliability diagram, since {why}: {", ".join(missing)}.')
    maps, broken = _first_of_each(table, 'maps')
    notes += broken
    by_distance = {k: each for k, each in statistics.items() if each.distance_bins is not None}
    together = statistics if len(statistics) > 1 else {}
    drawn = []
    for caption, kind, found, options in (
        ('Reliability diagrams, one run each', 'reliability', statistics, {}),
        ('The same in one panel', 'reliability', together, dict(overlay=True)),
        ('ECE by distance from the nearest boundary, one run each', 'boundary', by_distance, {}),
        ('Confidence maps, one run of each loss', 'maps', maps, {}),
        *(
            (f'Worst-calibrated test images, {name}', 'worst', {name: each}, {})
            for name, each in maps.items()
            if each.worst
        ),
    ):
        try:
            if found:
                drawn.append((caption, figures.draw(kind, found, **options)))
        except ValueError as error:
            notes.append(f'Not drawn, {caption[0].lower()}{caption[1:]}: {error}.')
    classes = []
    for label, each in statistics.items():
        if each.class_bins is not None:
            headings, *rows = stratum_rows(each.class_bins, each.classes)
            text = table_text(['predicted class', *headings], rows, 'html')
            classes.append((f'Each predicted class, one run of {label}', text))
    return {'figures': drawn, 'notes': notes, 'details': classes}


def _first_of_each(table: Table, kind: str) -> tuple[dict, list[str]]:
    """Return what the first run of each row with a whole file left, and what is broken."""
    found, broken = {}, []
    for row in table.rows:
        for run in row.runs:
            try:
                found[row.label] = figures.load(kind, run.path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                broken.append(f'{error}.')
                continue
            break
    return found, broken


def _of_folders(folders: Sequence[str]) -> Iterator[dict]:
    """Yield the figures of the sweeps and of the tests on shifted data below some folders."""
    for title, kind in (('Sweeps', 'sweep'), ('Under shift', 'robustness')):
        drawn, notes = [], []
        paths = sorted({path for root in folders for path in figures.folders_of(kind, root)})
        for path in paths:
            try:
                found = {str(path): figures.load(kind, path)}
                if kind == 'sweep':
                    drawn.append((f'Sweep, {path}', figures.draw(kind, found)))
                    continue
                for each in SHIFT_FIGURES if found[str(path)][0].corrupted else ():
                    figure = figures.draw(kind, found, figure=each)
                    drawn.append((f'{SHIFT_FIGURES[each]}, {path}', figure))
            except ValueError as error:
                notes.append(f'{path} is not drawn: {error}.')
        if paths:
            yield {'name': title, 'figures': drawn, 'notes': notes}
