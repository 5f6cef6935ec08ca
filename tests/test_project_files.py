"""What CONTRIBUTING.md names is there, and what runs elsewhere calls the same commands."""

import os
import re

import mmengine
import pytest
from commands import ROOT
from quoted_numbers import written_pages

CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8')
PLACES = (
    '',
    'mmcalib/losses',
    'mmcalib/metrics',
    'mmcalib',
    'mmcalib/tasks',
    'tests',
    'tests/metrics',
)
# To be written by whoever follows the steps.
EXAMPLES = (
    'mmcalib/losses/my_loss.py',
    'configs/my/digits.py',
    'docs/results/NAME.json',
    'tools/TOOL.py',
)


def test_what_contributing_names_is_there():
    quoted = re.findall(r'`([\w./-]+)`', CONTRIBUTING)
    paths = [name for name in quoted if '/' in name or name.endswith(('.py', '.md', '.yml'))]
    assert len(paths) > 30
    folders = [ROOT / place for place in PLACES]
    configs = (ROOT / 'configs/ls', ROOT / 'configs/ls/..')
    for name in set(paths) - set(EXAMPLES):
        assert any((folder / name).exists() for folder in (*folders, *configs)), name


@pytest.mark.parametrize(
    ('file', 'name'),
    [
        ('mmcalib/metrics/definitions.py', 'METRICS'),
        ('tests/helpers/loss_cases.py', 'ROWS'),
        ('mmcalib/losses/label_smoothing.py', 'formula'),
        ('mmcalib/losses/label_smoothing.py', 'ranges'),
    ],
)
def test_names_in_the_steps(file, name):
    assert f'`{name}`' in CONTRIBUTING
    assert re.search(rf'^ *{name}\b.* = ', (ROOT / file).read_text(encoding='utf-8'), re.MULTILINE)


def test_the_workflow_runs_what_ci_runs():
    workflow = mmengine.load(ROOT / '.github/workflows/test.yml')
    commands = [step['run'] for step in workflow['jobs']['run']['steps'] if 'run' in step]
    assert commands == ['.ci/run']
    assert os.access(ROOT / '.ci/run', os.X_OK)


def test_pre_commit_runs_the_linter_that_ci_runs():
    (repo,) = mmengine.load(ROOT / '.pre-commit-config.yaml')['repos']
    script = (ROOT / '.ci/run').read_text(encoding='utf-8')
    for hook in repo['hooks']:
        assert re.search(rf'^{hook["entry"]}\b', script, re.MULTILINE)


def test_the_citation_is_the_readmes():
    citation = mmengine.load(ROOT / 'CITATION.cff', file_format='yaml')['preferred-citation']
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    assert citation['title'] in ' '.join(readme.split()) and citation['url'] in readme
    for author in citation['authors']:
        assert author['family-names'] in readme


PAGES = [*written_pages(ROOT), ROOT / 'configs/README.md']


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_are_there(page):
    text = page.read_text(encoding='utf-8')
    named = re.findall(r'(?<![\w/.])(?:configs|tools|docs)/[\w./]+\.(?:py|sh|md|json|png)\b', text)
    paths = {ROOT / name for name in set(named) - set(EXAMPLES)}
    links = re.findall(r'\]\(([^)#\s]+)', text)
    paths |= {page.parent / link for link in links if '://' not in link}
    assert [path for path in paths if not path.exists()] == []
