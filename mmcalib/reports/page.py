"""One self-contained HTML page of several runs: tables, diagrams, sweeps and tests under shift."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from rich.console import Console
from rich.progress import track

from mmcalib import __version__
from mmcalib.metrics.strata import stratum_rows
from mmcalib.reports import figures
from mmcalib.reports.formats import left_out, runs_text, table_text
from mmcalib.reports.tables import Table
from mmcalib.work_dir import SWEEP

DPI = 110
DPI_OF_FILES = 200
LONGEST = 60  # letters of a caption, which may have a long path, in the name of a file
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
    reliability diagram of one run of each loss, and for segmentors the images that those runs
    share and the worst of each. Tests on shifted data have their metrics by severity, and sweeps
    below the folders their curves. What a figure cannot be drawn from, because it is missing,
    broken or not yet far enough, is left out of it and named.

    Args:
        tables: Of :func:`mmcalib.reports.tables.tables_of`.
        others: What is in none of them, of :func:`mmcalib.reports.runs.find_runs`.
        folders: Where to look for sweeps.
        title: Of the page.
        folder: Into which the page's figures are also written; None for none.
        figure_format: ``'pdf'``, ``'svg'`` or ``'png'``, of the files there.
    """
    shown = track(tables, 'Drawing', transient=True, console=Console(stderr=True))
    sections = [*map(_of_table, shown), _of_sweeps(folders)]
    drawn = [figure for section in sections for figure in section['figures']]
    for number, figure in enumerate(drawn, 1):
        if folder:
            name = re.sub(r'\W+', '_', figure['caption']).strip('_').lower()[:LONGEST]
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(folder, f'{number:02}_{name}.{figure_format}')
            figure['figure'].savefig(path, dpi=DPI_OF_FILES)
        file = io.BytesIO()
        figure['figure'].savefig(file, format='png', dpi=DPI)
        figure['data'] = base64.b64encode(file.getvalue()).decode()
        figure['width'] = round(figure['figure'].get_figwidth() * 96)
    return TEMPLATES.get_template('page.html').render(
        title=title,
        sections=sections,
        others=left_out(others),
        version=__version__,
        date=datetime.now().astimezone().isoformat(' ', 'minutes'),
    )


def _of_table(table: Table) -> dict:
    """Return a table with its figures, its tables of classes, and notes on what is not drawn."""
    notes, text = [*table.notes], runs_text(table, 'html')
    section = dict(name=table.name, table=text, notes=notes, figures=[], details=[])
    runs = {row.label: [run.path for run in row.runs] for row in table.rows}
    kinds = {(run.kind, run.record.split) for row in table.rows for run in row.runs}
    if ('under shift', 'test') in kinds:
        folders = {path: [path] for paths in runs.values() for path in paths}
        found = _first_of_each('robustness', folders, notes)
        for figure, (caption, *_) in figures.SHIFT_FIGURES.items():
            _draw(section, caption, 'robustness', found, figure=figure)
    if kinds != {('', 'test')}:
        return section
    statistics = _first_of_each('reliability', runs, notes)
    if missing := [label for label in runs if label not in statistics]:
        why = 'calibration was not measured, or the file is missing'
        notes.append(f'No reliability diagram, since {why}: {", ".join(missing)}.')
    for label, each in statistics.items():
        _draw(section, f'Reliability, {label}', 'reliability', {label: each})
        if each.class_bins is not None:
            headings, *rows = stratum_rows(each.class_bins, each.classes)
            text = table_text(['predicted class', *headings], rows, 'html')
            section['details'].append((f'Each predicted class, one run of {label}', text))
    if len(statistics) > 1:
        _draw(section, 'The same in one panel', 'reliability', statistics, overlay=True)
    if found := {k: each for k, each in statistics.items() if each.distance_bins is not None}:
        _draw(section, 'ECE by distance from the nearest boundary', 'boundary', found)
    maps = _first_of_each('maps', runs, notes)
    if maps:
        _draw(section, 'Confidence maps, one run of each loss', 'maps', maps)
    for label, each in maps.items():
        if each.worst:
            _draw(section, f'Worst-calibrated test images, {label}', 'worst', {label: each})
    return section


def _draw(section: dict, caption: str, kind: str, runs: Mapping, **options) -> None:
    try:
        figure = figures.draw(kind, runs, **options)
    except ValueError as error:
        section['notes'].append(f'{caption} is not drawn: {error}.')
    else:
        section['figures'].append({'caption': caption, 'figure': figure})


def _first_of_each(kind: str, runs: Mapping[str, Sequence[str]], notes: list[str]) -> dict:
    """Return what the first folder of each name with a whole file has; note the broken ones."""
    found = {}
    for name, paths in runs.items():
        for path in paths:
            try:
                found[name] = figures.load(kind, path)
                break
            except FileNotFoundError:
                continue
            except ValueError as error:
                notes.append(f'{error}.')
    return found


def _of_sweeps(folders: Sequence[str]) -> dict:
    """Return the figures of the sweeps below some folders."""
    section = dict(name='Sweeps', notes=[], figures=[])
    paths = {str(path) for root in folders for path in Path(root).rglob(SWEEP)}
    found = _first_of_each('sweep', {path: [path] for path in sorted(paths)}, section['notes'])
    for path, sweep in found.items():
        _draw(section, f'Sweep, {Path(path).parent}', 'sweep', {sweep['loss']: sweep})
    return section
