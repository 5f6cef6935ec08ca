"""The examples of pages run as they stand, one block after the other, and hold what they assert."""

import re

import pytest
from commands import ROOT

PAGES = [
    'concepts/estimators.md',
    'faq.md',
    'howto/match_other_tools.md',
    'howto/measure.md',
    'coming_from/netcal.md',
    'coming_from/torchmetrics.md',
]


def examples(page):
    """Return the blocks of Python that are no configs."""
    text = (ROOT / 'docs' / page).read_text('utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    return [block for block in blocks if not re.search(r'^\w+_evaluator = |^dict', block, re.M)]


@pytest.mark.parametrize('page', PAGES)
def test_examples_of_a_page(page):
    found, scope = examples(page), {}
    assert found
    for block in found:
        exec(block, scope)


def test_biased_errors_are_those_of_the_page(capsys):
    (block,) = examples('concepts/estimators.md')
    exec(block, {})
    printed = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    text = (ROOT / 'docs/concepts/estimators.md').read_text('utf-8')
    claimed = re.search(r'^prints (.+) and (.+) %\.', text, re.M)
    assert printed == [float(v) for v in (*claimed[1].split(', '), claimed[2])]
