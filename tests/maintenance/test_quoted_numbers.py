"""The numbers that pages print are those that were measured."""

import json
import re

import pytest
import quoted_numbers
from commands import ROOT, call_here

PAGES = quoted_numbers.written_pages(ROOT)
TOOL = 'maintenance/quote_results.py'
RESULTS = ROOT / 'docs/results'
TABLE = """\
| loss | runs | top-1 (%) | ECE (%) | the paper: ECE | scenes: mIoU (%) |
|---|--:|--:|--:|--:|--:|
| CE <!-- one: CE --> | 2 | 1.00 ± 9.99 | **3.00** | 5.85 | <!-- two: LS α=0.05 --> 7.77 |
| of others | 1 | 1.00 | 1.00 | – | – |
"""


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_print_what_was_measured(page):
    text = page.read_text(encoding='utf-8')
    assert quoted_numbers.with_measured(text, quoted_numbers.read_measured(RESULTS)) == text
    assert quoted_numbers.without_source(text) == []


def test_some_numbers_are_quoted():
    assert sum(len(quoted_numbers.SOURCE.findall(page.read_text('utf-8'))) for page in PAGES) > 30


def measured(**rows):
    """Two runs of CE and one of LS."""
    runs = [{'metrics': {'accuracy/top1': 90.0 + seed, 'calibration/ECE': 3.0}} for seed in (0, 2)]
    segmented = [{'metrics': {'mIoU': 50.0, 'calibration/AECE': 1.0}}]
    return {
        'one': {'CE': {'label': 'CE', 'runs': runs}},
        'two': {'LS α=0.05': {'label': 'LS α=0.05', 'runs': segmented}},
    } | rows


def test_numbers_are_put_under_their_headings():
    page = quoted_numbers.with_measured(TABLE, measured())
    row = page.split('\n')[2]
    assert re.sub(' <!--.*?-->', '', row) == (
        '| CE | 2 | 91.00 ± 1.41 | **3.00 ± 0.00** | 5.85 | 50.00 |'
    )
    assert page.replace(row, '') == TABLE.replace(TABLE.split('\n')[2], '')


def test_what_cannot_be_quoted_is_said():
    with pytest.raises(ValueError, match=r"no row 'CE' in one\.json"):
        quoted_numbers.with_measured(TABLE, measured(one={}))
    with pytest.raises(ValueError, match=r"'LS α=0\.05' has no metric of the column 'AECE \(%\)'"):
        row = {'label': 'LS α=0.05', 'runs': [{'metrics': {'calibration/ECE': 1.0}}]}
        quoted_numbers.with_measured(
            '| loss | AECE (%) |\n|---|--:|\n| x <!-- two: LS --> | 1.00 |', {'two': {'LS': row}}
        )
    assert quoted_numbers.without_source('| a | **1.00 ± 0.20** |\n| b | T (1.00 ± 0.20) |') == [
        '| a | **1.00 ± 0.20** |'
    ]


def test_the_tool_brings_a_page_in_line(tmp_path, monkeypatch, capsys):
    page = tmp_path / 'page.md'
    page.write_text(TABLE)
    content = measured()
    for name, rows in content.items():
        (tmp_path / f'{name}.json').write_text(json.dumps([{'rows': list(rows.values())}]))
    for printed in (f'{page}\n', ''):  # the second time there is nothing to do
        call_here(
            'maintenance/quote_results.py', page, '--results', tmp_path, monkeypatch=monkeypatch
        )
        assert capsys.readouterr().out == printed
    assert '91.00 ± 1.41' in page.read_text()
    (tmp_path / 'one.json').write_text(json.dumps([{'rows': [content['one']['CE']] * 2}]))
    with pytest.raises(SystemExit):
        call_here(
            'maintenance/quote_results.py', page, '--results', tmp_path, monkeypatch=monkeypatch
        )
    assert 'two rows of one label' in capsys.readouterr().err
