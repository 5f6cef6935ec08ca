"""Tables that people read, as text, Markdown, HTML or LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

from mmcalib.options import check_choice
from mmcalib.texts import printable

LABEL_WIDTH = 60  # characters of a label; the text of a longer one takes several lines
TABULATE_FORMATS = {
    'text': 'simple',
    'markdown': 'pipe',
    'html': 'html',
    'latex': 'latex_booktabs',
}
TABULATE_ALIGNMENTS = {'l': 'left', 'r': 'right', 'c': 'center'}
MARKDOWN_MARKUP = re.compile(r'[\\`*]|\](?=[(\[:])|(?<!\w)_|_(?!\w)')


@dataclass(frozen=True)
class TextTable:
    """Table of texts, which tabulate lays out.

    Markup in a cell is escaped, and so is what cannot be printed, such as a new line.

    Attributes:
        headings: Headings of the columns; empty for a text that has none.
        rows: Cells of each row, one per column.
        alignment: ``'l'``, ``'r'`` or ``'c'`` of each column. By default the first column, which
            has labels, is to the left, and the others, which have numbers, are to the right.

    Example:
        >>> table = TextTable(['loss', 'ECE (%)'], [['CE', '7.31'], ['MbLS m=6', '12.05']])
        >>> print(table.write('text'))
        loss        ECE (%)
        --------  ---------
        CE             7.31
        MbLS m=6      12.05
        >>> print(table.write('markdown'))
        | loss     |   ECE (%) |
        |:---------|----------:|
        | CE       |      7.31 |
        | MbLS m=6 |     12.05 |
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    alignment: str = ''

    def write(self, output_format: str = 'text') -> str:
        """Return the table as ``'text'``, ``'markdown'``, ``'html'`` or ``'latex'``.

        Raises:
            ValueError: If the format is another one.
        """
        check_choice('output_format', output_format, TABULATE_FORMATS)
        tabulate_format = TABULATE_FORMATS[output_format]
        if output_format == 'text' and not self.headings:
            tabulate_format = 'plain'  # 'simple' would draw a rule above and below the rows
        return tabulate(
            [self._escape_cells(row, output_format) for row in self.rows],
            self._escape_cells(self.headings, output_format),
            tablefmt=tabulate_format,
            disable_numparse=True,  # the cells are rounded already
            colalign=self._column_alignments(),
            maxcolwidths=[LABEL_WIDTH] if output_format == 'text' else None,
        )

    def _escape_cells(self, cells: Sequence[str], output_format: str) -> list[str]:
        """Return cells in one line each; tabulate itself escapes those of HTML and LaTeX."""
        texts = [printable(str(cell)) for cell in cells]
        if output_format == 'markdown':
            return [escape_markdown(text) for text in texts]
        return texts

    def _column_alignments(self) -> list[str]:
        """Return tabulate's word for the alignment of each column."""
        if self.alignment:
            return [TABULATE_ALIGNMENTS[letter] for letter in self.alignment]
        num_columns = len(self.headings) or max((len(row) for row in self.rows), default=0)
        return ['left', *['right'] * (num_columns - 1)]


def escape_markdown(text: str) -> str:
    """Return a text in which names of runs and losses are no markup of Markdown."""
    text = html.escape(text, quote=False).replace('|', '&#124;')
    return MARKDOWN_MARKUP.sub(r'\\\g<0>', text)
