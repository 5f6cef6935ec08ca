"""One self-contained HTML page of several runs: tables, diagrams, sweeps and tests under shift."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from mmcalib.pages import page_templates
from mmcalib.reports.figures.from_files import SHIFT_FIGURES, draw_figure, read_file
from mmcalib.reports.formats import table_of_runs
from mmcalib.reports.reported_runs import ReportedRun, sweep_folder
from mmcalib.reports.tables import Row, Table
from mmcalib.tables import TextTable
from mmcalib.version import __version__
from mmcalib.visualization.pixels import save_figure

DPI = 110
PIXELS_PER_INCH = 96  # by CSS
LONGEST_FILE_NAME = 60  # letters of a caption, which may have a long path
CLASS_HEADINGS = ('predicted class', 'ECE (%)', 'accuracy (%)', 'confidence (%)', 'count')


@dataclass
class PageFigure:
    """Figure that a page is to have.

    Attributes:
        caption: Text above it.
        kind: Key of :data:`~mmcalib.reports.figures.from_files.FIGURE_KINDS`.
        runs: Contents of the files that it is drawn from, by the names of the runs.
        drawing: Options of the function that draws it.
        shown: The runs that it shows, behind the caption: the folder of one, the titles of several.
    """

    caption: str
    kind: str
    runs: Mapping[str, Any]
    drawing: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ''


@dataclass
class Section:
    """Part of a page.

    Attributes:
        name: Heading.
        table: Table as HTML, empty for none.
        notes: Lines below the table.
        class_tables: Titles of the tables of a run's classes, and these as HTML.
        figures: Figures to draw.
        pictures: Captions, widths in pixels and PNG data of the drawn figures.
    """

    name: str
    table: str = ''
    notes: list[str] = field(default_factory=list)
    class_tables: list[tuple[str, str]] = field(default_factory=list)
    figures: list[PageFigure] = field(default_factory=list)
    pictures: list[dict[str, Any]] = field(default_factory=list)


def render_page(
    tables: Sequence[Table],
    excluded: Sequence[str],
    runs: Sequence[ReportedRun],
    *,
    folder: str | Path | None = None,
    figure_format: str = 'pdf',
) -> str:
    """Return a page that needs no other file and no network.

    Each data set and network has its table, those of single classes where a test measured them, the
    reliability diagram of one run of each loss, and for segmentors the images that those runs
    share and the worst of each. Tests on shifted data have their metrics by severity, and sweeps
    their curves. A figure whose file is missing, broken or not yet far enough is left out, and
    named.

    Args:
        tables: Tables that :func:`mmcalib.reports.tables.tables_from_runs` returned.
        excluded: Line for each reason for which runs are in no table, as
            :func:`mmcalib.reports.reported_runs.find_runs` returned them.
        runs: Runs that it returned, for the sweeps that they are part of.
        folder: Folder for files of the page's figures, None to write none.
        figure_format: ``'pdf'``, ``'svg'`` or ``'png'``, for the files there.
    """
    sections = [_section_of_table(table) for table in tables]
    sections.append(_section_of_sweeps(runs))
    num_drawn = 0
    for section in track(sections, 'Drawing', transient=True, console=Console(stderr=True)):
        for page_figure in section.figures:
            try:
                figure = draw_figure(page_figure.kind, page_figure.runs, **page_figure.drawing)
            except ValueError as error:
                section.notes.append(f'{page_figure.caption} is not drawn: {error}.')
                continue
            num_drawn += 1
            if folder is not None:
                name = f'{num_drawn:02}_{_file_name(page_figure.caption)}.{figure_format}'
                save_figure(figure, Path(folder, name))
            caption = ': '.join(filter(None, [page_figure.caption, page_figure.shown]))
            section.pictures.append(_picture(figure, caption))
    template = page_templates(Path(__file__).parent).get_template('report.html')
    return template.render(
        title='Calibration report',
        sections=sections,
        excluded=excluded,
        version=__version__,
        date=datetime.now().astimezone().isoformat(' ', 'minutes'),
    )


def _file_name(caption: str) -> str:
    return re.sub(r'\W+', '_', caption).strip('_').lower()[:LONGEST_FILE_NAME]


def _picture(figure: Figure, caption: str) -> dict[str, Any]:
    """Return a figure as the template shows it: its caption, width and PNG data."""
    file = io.BytesIO()
    figure.savefig(file, format='png', dpi=DPI)
    return {
        'caption': caption,
        'width': round(figure.get_figwidth() * PIXELS_PER_INCH),
        'data': base64.b64encode(file.getvalue()).decode(),
    }


def _section_of_table(table: Table) -> Section:
    """Return the section of a table, with its figures and its tables of classes."""
    section = Section(
        name=table.name, table=table_of_runs(table).write('html'), notes=list(table.notes)
    )
    kinds = {(run.kind, run.record.split) for row in table.rows for run in row.runs}
    if kinds == {('under shift', 'test')}:
        runs = {row.label: row.runs for row in table.rows}
        for name, shift_figure in SHIFT_FIGURES.items():
            section.figures.append(
                PageFigure(shift_figure.caption, 'robustness', runs, {'figure': name})
            )
    if kinds == {('', 'test')}:
        _add_test_figures(section, table.rows)
        _add_class_tables(section, table.rows)
    return section


def _add_test_figures(section: Section, rows: Sequence[Row]) -> None:
    """Add the figures of tests on test data: one run of each row, and all of these together."""
    paths_by_row = {}
    titles = {}
    folders = {}
    for row in rows:
        paths_by_row[row.label] = {_run_name(row, run): run.path for run in row.runs}
        folders |= paths_by_row[row.label]
        titles |= {_run_name(row, run): _run_title(row, run) for run in row.runs}
    statistics = _read_first_whole('reliability', paths_by_row, section.notes)
    maps = _read_first_whole('maps', paths_by_row, section.notes)
    without_statistics = [
        label for label, paths in paths_by_row.items() if not paths.keys() & statistics.keys()
    ]
    if without_statistics:
        reason = 'calibration was not measured, or the file is missing'
        labels = ', '.join(without_statistics)
        section.notes.append(f'No reliability diagram, since {reason}: {labels}.')
    for name, run_statistics in statistics.items():
        caption = f'Reliability, {titles[name]}'
        runs = {name: run_statistics}
        section.figures.append(PageFigure(caption, 'reliability', runs, shown=folders[name]))
    if len(statistics) > 1:
        caption = 'The same in one panel'
        shown = _join_titles(titles, statistics)
        overlay = {'overlay': True}
        section.figures.append(PageFigure(caption, 'reliability', statistics, overlay, shown))
    with_distances = {
        name: run_statistics
        for name, run_statistics in statistics.items()
        if run_statistics.distance_bins is not None
    }
    if with_distances:
        caption = 'ECE by distance from the nearest boundary'
        shown = _join_titles(titles, with_distances)
        section.figures.append(PageFigure(caption, 'boundary', with_distances, shown=shown))
    if maps:
        caption = 'Confidence maps, one run of each loss'
        shown = _join_titles(titles, maps)
        section.figures.append(PageFigure(caption, 'maps', maps, shown=shown))
    for name, run_maps in maps.items():
        if run_maps.worst:
            caption = f'Worst-calibrated test images, {titles[name]}'
            runs = {name: run_maps}
            section.figures.append(PageFigure(caption, 'worst', runs, shown=folders[name]))


def _join_titles(titles: Mapping[str, str], names: Iterable[str]) -> str:
    return '; '.join(titles[name] for name in names)


def _add_class_tables(section: Section, rows: Sequence[Row]) -> None:
    """Add the tables of the predicted classes, of the first run of each row."""
    for row in rows:
        run = row.runs[0]
        title = f'Each predicted class, {_run_title(row, run)}'
        for columns in run.record.strata.get('per_class', {}).values():
            section.class_tables.append((title, _class_table(columns).write('html')))


def _run_name(row: Row, run: ReportedRun) -> str:
    """Return a row's label, and which run of the row it is if there are several."""
    if len(row.runs) == 1:
        return row.label
    run_name = run.path if run.record.seed is None else f'seed={run.record.seed}'
    return f'{row.label}, {run_name}'


def _run_title(row: Row, run: ReportedRun) -> str:
    """Return a run's name, and of how many runs it is one."""
    name = _run_name(row, run)
    return name if len(row.runs) == 1 else f'{name} (1 of {len(row.runs)} runs)'


def _class_table(columns: Mapping[str, Sequence]) -> TextTable:
    """Return the table of what a record has of each predicted class."""
    rows = []
    for class_name, *values, count in zip(
        columns['classes'],
        columns['ECE'],
        columns['accuracy'],
        columns['confidence'],
        columns['count'],
        strict=True,
    ):
        cells = ['nan' if value is None else f'{value:.2f}' for value in values]
        rows.append([class_name, *cells, f'{count:,}'])
    return TextTable(CLASS_HEADINGS, rows)


def _read_first_whole(
    kind: str, paths_by_row: Mapping[str, Mapping[str, str | Path]], notes: list[str]
) -> dict[str, Any]:
    """Return the content of the first whole file of each row, by the name of its run.

    Args:
        kind: Kind of the figure that is drawn from the files.
        paths_by_row: Folder of each run by its name, for each row.
        notes: Lines of the section, to which one is added for each broken file.
    """
    contents = {}
    for paths in paths_by_row.values():
        for name, path in paths.items():
            try:
                contents[name] = read_file(kind, path)
                break
            except FileNotFoundError:
                continue
            except ValueError as error:
                notes.append(f'{error}.')
    return contents


def _section_of_sweeps(runs: Sequence[ReportedRun]) -> Section:
    """Return the section of the sweeps that runs are part of."""
    section = Section('Sweeps')
    folders = {sweep_folder(run.path) for run in runs} - {None}
    folder_by_row = {str(folder): {str(folder): folder} for folder in sorted(folders)}
    for name, sweep in _read_first_whole('sweep', folder_by_row, section.notes).items():
        section.figures.append(PageFigure(f'Sweep, {name}', 'sweep', {sweep['loss']: sweep}))
    return section
