"""Escaping, alignment and wrapping of text tables in each format."""

import pytest

from mmcalib.tables import LABEL_WIDTH, TextTable, escape_markdown

TABLE = TextTable(['loss', 'ECE (%)'], [['CE', '7.31'], ['MbLS_m=6 <b>', '12.05']])
TEXT = """\
loss            ECE (%)
------------  ---------
CE                 7.31
MbLS_m=6 <b>      12.05"""


def test_text_table_as_text_aligns_labels_left_and_numbers_right():
    assert TABLE.write() == TABLE.write('text') == TEXT


@pytest.mark.parametrize(
    ('output_format', 'expected'),
    [
        ('markdown', 'MbLS_m=6 &lt;b&gt;'),
        ('html', 'MbLS_m=6 &lt;b&gt;'),
        ('latex', r'MbLS\_m=6 \ensuremath{<}b\ensuremath{>}'),
    ],
)
def test_text_table_in_other_formats_escapes_markup(output_format, expected):
    actual = TABLE.write(output_format)
    assert expected in actual and '12.05' in actual and '<b>' not in actual


def test_text_table_other_format_raises():
    with pytest.raises(ValueError, match="got 'markdwn'; did you mean markdown"):
        TABLE.write('markdwn')


def test_text_table_without_headings_writes_bare_lines():
    rows = [['accuracy/top1', '70.01 %', ''], ['gap', '+3.10 %', 'over-confident']]
    actual = TextTable((), rows, 'lrl').write()
    assert actual == 'accuracy/top1  70.01 %\ngap            +3.10 %  over-confident'


def test_text_table_without_rows_writes_headings():
    assert TextTable(['loss', 'runs'], []).write('markdown').startswith('| loss')


def test_text_table_long_label_takes_several_lines_of_text():
    label = ' '.join(['word'] * 20)
    lines = TextTable(['', 'ECE (%)'], [[label, '7.31']]).write().splitlines()
    assert len(lines) == 4 and lines[2].endswith('7.31')
    assert max(len(line) for line in lines[3:]) <= LABEL_WIDTH
    assert label in TextTable(['', 'ECE (%)'], [[label, '7.31']]).write('markdown')


def test_text_table_cell_with_a_new_line_stays_one_line():
    assert r'two\nlines' in TextTable(['loss'], [['two\nlines']]).write()


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('a_b', 'a_b'),
        ('_a_', r'\_a\_'),
        ('a|b', 'a&#124;b'),
        ('[a](b)', r'[a\](b)'),
        ('`*a*`', r'\`\*a\*\`'),
        ('<img>', '&lt;img&gt;'),
    ],
)
def test_escape_markdown_leaves_no_markup(text, expected):
    assert escape_markdown(text) == expected
