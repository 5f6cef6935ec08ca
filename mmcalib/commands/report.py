"""Collect the records of tested runs into tables, and into a page with figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mmcalib.cli.report import ReportOptions
from mmcalib.errors import UserError
from mmcalib.files import RESULTS, SWEEP, VALIDATION_RESULTS, write_text
from mmcalib.reports.compare_tests import compare_tests
from mmcalib.reports.formats import format_tables
from mmcalib.reports.reported_runs import find_runs
from mmcalib.reports.tables import Table, tables_from_runs
from mmcalib.texts import printable

FORMAT_OF_SUFFIX = {
    '.txt': 'text',
    '.md': 'markdown',
    '.tex': 'latex',
    '.csv': 'csv',
    '.json': 'json',
    '.html': 'html',
}


COMPARISON_FORMATS = ('text', 'markdown', 'latex', 'json')


def report_runs(options: ReportOptions) -> None:
    """Write or print the tables of all tested runs below some folders, or compare two of them."""
    check_outputs(options)
    if options.compare:
        write_content(comparison_text(options), options.out)
        return
    formats = output_formats(options)
    runs, excluded = find_runs(options.folders)
    tables = tables_from_runs(runs, options.protocol)
    for path, output_format in formats.items():
        if output_format == 'html':
            # The page takes matplotlib along, which is 0.7 s that tables need not wait for.
            from mmcalib.reports.page import render_page

            content = render_page(
                tables, excluded, runs, folder=options.figures, figure_format=options.figure_format
            )
        else:
            content = format_tables(output_format, tables, excluded)
        if output_format in ('csv', 'json'):
            print_notes(tables, excluded)
        write_content(content, path)


def comparison_text(options: ReportOptions) -> str:
    """Return the comparison of two tests in the format that the options name."""
    excluded_options = {
        '--html': options.html,
        '--figures': options.figures,
        '--protocol': options.protocol,
    }
    for option, value in excluded_options.items():
        if value is not None:
            raise UserError(f'--compare has no {option}: leave it out')
    if len(options.folders) != 2:
        raise UserError(f'--compare takes two tests, A and B, got {len(options.folders)}')
    output_format = tables_format(options)
    if output_format not in COMPARISON_FORMATS:
        raise UserError(
            f'--compare writes {", ".join(COMPARISON_FORMATS)}, not {output_format}: '
            'name a file that ends so, or another --format'
        )
    comparison = compare_tests(*options.folders)
    if output_format == 'json':
        return json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False)
    return comparison.write(output_format)


def output_formats(options: ReportOptions) -> dict[str | None, str]:
    """Return the format of each output by its path, None for the terminal."""
    formats = {options.out: tables_format(options)}
    if options.html is not None:
        formats[options.html] = 'html'
    if options.figures is not None and 'html' not in formats.values():
        raise UserError('--figures writes those of the HTML page: add --html FILE')
    return formats


def tables_format(options: ReportOptions) -> str:
    """Return the format of the tables, which the suffix of their file may tell."""
    if options.format is not None:
        return options.format
    if options.out is None:
        return 'text'
    suffix = Path(options.out).suffix
    if suffix not in FORMAT_OF_SUFFIX:
        suffixes = ', '.join(FORMAT_OF_SUFFIX)
        raise UserError(f'--out {options.out}: name a {suffixes} file, or add --format')
    return FORMAT_OF_SUFFIX[suffix]


def check_outputs(options: ReportOptions) -> None:
    """Refuse files that a report would destroy: records of tests, configs, checkpoints.

    This prevents lost data.
    """
    for path in (options.out, options.html):
        if path is not None and Path(path).name in (RESULTS, VALIDATION_RESULTS, SWEEP):
            raise UserError(
                f'{path} is the name of a record, which would be lost: name another file'
            )
    if options.html is not None and Path(options.html).suffix not in ('.html', '.htm'):
        raise UserError(f'--html {options.html}: name a file that ends in .html')


def print_notes(tables: Sequence[Table], excluded: Sequence[str]) -> None:
    """Print what CSV and JSON have no place for: notes, and what is in no table."""
    for table in tables:
        for note in table.notes:
            print(printable(f'{table.name}: {note}'), file=sys.stderr)
    for line in excluded:
        print(printable(line), file=sys.stderr)


def write_content(content: str, path: str | None) -> None:
    """Print a text, or write it to a file."""
    # The name of a folder may hold bytes that are no text.
    content = content.encode(errors='backslashreplace').decode()
    if path is None:
        print(content)
        return
    write_text(path, f'{content}\n')
    print(f'Written to {path}', file=sys.stderr)
