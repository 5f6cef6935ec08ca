"""One self-contained HTML page of several runs: tables, diagrams, sweeps and tests under shift."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from rich.console import Console
from rich.progress import track

from mmcalib import __version__
from mmcalib.reports import figures
from mmcalib.reports.formats import runs_text
from mmcalib.reports.tables import Row, Table
from mmcalib.reports.tested_runs import TestedRun, sweep_of
from mmcalib.tables import TextTable
from mmcalib.visualization.style import save_figure

DPI = 110
LONGEST = 60  # letters of a caption, which may have a long path, in the name of a file
OF_CLASSES = ('predicted class', 'ECE (%)', 'accuracy (%)', 'confidence (%)', 'count')
TEMPLATES = Path(__file__).parent / 'templates'
PATH_SEPARATORS = re.compile('([/_-])')


def environment(folder: Path = TEMPLATES) -> Environment:
    """Return the environment of the templates in a folder, which may extend ``base.html``."""
    loader = FileSystemLoader([folder, TEMPLATES])
    templates = Environment(loader=loader, autoescape=True, trim_blocks=True)
    templates.filters['breakable'] = _break_at_separators
    return templates


def _break_at_separators(text: str) -> Markup:
    """Return HTML of a text that may take a new line behind each separator of a path."""
    return Markup(PATH_SEPARATORS.sub(r'\1<wbr>', str(escape(text))))


def page_of(
    tables: Sequence[Table],
    others: Sequence[str],
    runs: Sequence[TestedRun],
    *,
    folder: str | Path | None = None,
    figure_format: str = 'pdf',
) -> str:
    """Return a page that needs no other file and no network.

    Each data set and network has its table, those of single classes where a test measured them, the
    reliability diagram of one run of each loss, and for segmentors the images that those runs
    share and the worst of each. Tests on shifted data have their metrics by severity, and sweeps
    their curves. What a figure cannot be drawn from, because it is missing, broken or not yet far
    enough, is left out of it and named.

    Args:
        tables: Of :func:`mmcalib.reports.tables.tables_of`.
        others: What is in none of them, of :func:`mmcalib.reports.tested_runs.find_runs`.
        runs: Of the same, for the sweeps that they are part of.
        folder: Into which the page's figures are also written; None for none.
        figure_format: ``'pdf'``, ``'svg'`` or ``'png'``, of the files there.
    """
    sections = [*map(_of_table, tables), _of_sweeps(runs)]
    drawn = 0
    for section in track(sections, 'Drawing', transient=True, console=Console(stderr=True)):
        section['figures'] = []
        for caption, kind, found, options in section['wanted']:
            if not found:
                continue
            try:
                figure = figures.draw(kind, found, **options)
            except ValueError as error:
                section['notes'].append(f'{caption} is not drawn: {error}.')
                continue
            drawn += 1
            if folder:
                name = re.sub(r'\W+', '_', caption).strip('_').lower()[:LONGEST]
                save_figure(figure, Path(folder, f'{drawn:02}_{name}.{figure_format}'))
            file = io.BytesIO()
            figure.savefig(file, format='png', dpi=DPI)
            data = base64.b64encode(file.getvalue()).decode()
            width = round(figure.get_figwidth() * 96)
            section['figures'].append({'caption': caption, 'width': width, 'data': data})
    return (
        environment()
        .get_template('report.html')
        .render(
            title='Calibration report',
            sections=sections,
            others=others,
            version=__version__,
            date=datetime.now().astimezone().isoformat(' ', 'minutes'),
        )
    )


def _of_table(table: Table) -> dict:
    """Return a table, its figures by caption, kind, runs and options, and its tables of classes."""
    kinds = {(run.kind, run.record.split) for row in table.rows for run in row.runs}
    section = dict(name=table.name, table=runs_text(table, 'html'), notes=[*table.notes], wanted=[])
    if kinds == {('under shift', 'test')}:
        rows = {row.label: row.runs for row in table.rows}
        section['wanted'] = [
            (caption, 'robustness', rows, {'figure': figure})
            for figure, (caption, _) in figures.SHIFT_FIGURES.items()
        ]
    if kinds != {('', 'test')}:
        return section
    paths = {row.label: {_run_name(row, run): run.path for run in row.runs} for row in table.rows}
    statistics = _first_of_each('reliability', paths, section['notes'])
    maps = _first_of_each('maps', paths, section['notes'])
    if missing := [label for label, names in paths.items() if not {*names} & {*statistics}]:
        why = 'calibration was not measured, or the file is missing'
        section['notes'].append(f'No reliability diagram, since {why}: {", ".join(missing)}.')
    numbers = {
        name: f'{name} (1 of {len(names)} runs)' if len(names) > 1 else name
        for names in paths.values()
        for name in names
    }
    several = statistics if len(statistics) > 1 else {}
    distances = {k: each for k, each in statistics.items() if each.distance_bins is not None}
    section['wanted'] = [
        *(
            (f'Reliability, {numbers[k]}', 'reliability', {k: each}, {})
            for k, each in statistics.items()
        ),
        ('The same in one panel', 'reliability', several, {'overlay': True}),
        ('ECE by distance from the nearest boundary', 'boundary', distances, {}),
        ('Confidence maps, one run of each loss', 'maps', maps, {}),
        *(
            (f'Worst-calibrated test images, {numbers[k]}', 'worst', {k: each}, {})
            for k, each in maps.items()
            if each.worst
        ),
    ]
    section['details'] = [
        (f'Each predicted class, {numbers[_run_name(row, row.runs[0])]}', _of_classes(each))
        for row in table.rows
        for each in row.runs[0].record.strata.get('per_class', {}).values()
    ]
    return section


def _run_name(row: Row, run: TestedRun) -> str:
    """Return a row's label, and which run of the row it is if there are several."""
    if len(row.runs) == 1:
        return row.label
    which = run.path if run.record.seed is None else f'seed={run.record.seed}'
    return f'{row.label}, {which}'


def _of_classes(measured: Mapping) -> str:
    """Return the table of what a record has of each predicted class."""
    columns = [measured[key] for key in ('ECE', 'accuracy', 'confidence')]
    cells = [['nan' if v is None else f'{v:.2f}' for v in column] for column in columns]
    counts = [f'{count:,}' for count in measured['count']]
    rows = zip(measured['classes'], *cells, counts, strict=True)
    return TextTable(OF_CLASSES, [*rows]).write('html')


def _first_of_each(kind: str, rows: Mapping[str, Mapping], notes: list[str]) -> dict:
    """Return what the first run of each row with a whole file has, by its name in the row.

    Args:
        kind: Of a figure.
        rows: The folders of the runs, by their names.
        notes: Gets a line for each broken file.
    """
    found = {}
    for paths in rows.values():
        for name, path in paths.items():
            try:
                found[name] = figures.load(kind, path)
                break
            except FileNotFoundError:
                continue
            except ValueError as error:
                notes.append(f'{error}.')
    return found


def _of_sweeps(runs: Sequence[TestedRun]) -> dict:
    """Return the figures of the sweeps that runs are part of."""
    section, folders = dict(name='Sweeps', notes=[]), {sweep_of(run.path) for run in runs} - {None}
    found = _first_of_each('sweep', {f: {f: f} for f in sorted(folders)}, section['notes'])
    section['wanted'] = [
        (f'Sweep, {f}', 'sweep', {sweep['loss']: sweep}, {}) for f, sweep in found.items()
    ]
    return section
