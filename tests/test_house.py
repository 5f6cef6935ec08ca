"""Which room of the package may import which; house rules that a reader can rely on."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / 'mmcalib'
TOOLBOXES = ('mmpretrain', 'mmseg', 'mmcv')
# What a room may not import. Modules at the top of the package serve all rooms, so use none.
ABOVE = ('runs', 'reports', 'tasks')  # the library
FORBIDDEN = {
    'losses': ('metrics', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'samples': ('losses', 'metrics', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'metrics': ('losses', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'posthoc': ('losses', 'visualization', 'hooks', 'datasets', *ABOVE),
    'ensembles': ('losses', 'posthoc', 'visualization', 'hooks', 'datasets', *ABOVE),
    'visualization': ('losses', 'posthoc', 'ensembles', 'hooks', 'datasets', 'models', *ABOVE),
    'transforms': ('losses', 'metrics', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'datasets': ('losses', 'metrics', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'models': ('losses', 'metrics', 'posthoc', 'ensembles', 'visualization', 'hooks', *ABOVE),
    'hooks': ABOVE,
    'reports': (
        'losses',
        'posthoc',
        'ensembles',
        'hooks',
        'datasets',
        'models',
        'runs',
        'tasks',
    ),
    # Parses before torch is imported; an error asks `runs` for the nearest name.
    'cli': (
        'losses',
        'samples',
        'metrics',
        'posthoc',
        'ensembles',
        'visualization',
        'transforms',
        'datasets',
        'models',
        'hooks',
        'reports',
        'tasks',
    ),
    'runs': ('reports', 'tasks'),
    'tasks': (),
}
# Which task may use which other, and reports.
TASKS = {
    'calibrate': (),
    'sweep': ('reports',),
    'predict': ('reports', 'calibrate'),
    'robustness': ('reports', 'calibrate'),
    'export': ('predict',),
}
# Rooms that know nothing of a training or a test.
NO_RUNNER = ('visualization', 'reports')
RUNNER_PACKAGES = ('mmengine.runner', 'mmengine.hooks', 'mmengine.model')


def imports(source):
    """Yield every imported module with whether the import runs when the module is imported."""
    tree = ast.parse(source)
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
        else:
            continue
        for name in names:
            yield name, id(node) not in inside


def broken_rules(room, source):
    """Return what a module of a room imports and may not."""
    broken = []
    for name, at_import in imports(source):
        parts = name.split('.')
        if parts[0] in TOOLBOXES and at_import:
            broken.append(name)
        if parts[0] == 'mmcalib' and len(parts) > 1 and parts[1] in FORBIDDEN.get(room, ()):
            broken.append(name)
        used = name.removeprefix('mmcalib.').removeprefix('tasks.').split('.')[0]
        if used in ('reports', *TASKS) and used not in (
            room,
            *TASKS.get(room, ('reports', *TASKS)),
        ):
            broken.append(name)
        if room in NO_RUNNER and name.startswith(RUNNER_PACKAGES):
            broken.append(name)
        if not room and parts[0] == 'mmcalib' and parts[1:2] and parts[1] in FORBIDDEN:
            broken.append(name)
    return broken


MODULES = sorted(
    path
    for path in PACKAGE.rglob('*.py')
    if '.mim' not in path.parts and path != PACKAGE / '__init__.py'
)


@pytest.mark.parametrize('path', MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_run_one_way(path):
    parts = path.relative_to(PACKAGE).parts
    room = parts[1] if parts[0] == 'tasks' and len(parts) > 2 else parts[0] if parts[1:] else ''
    if path.name == '__main__.py':  # of the command line, where `python -m mmcalib` looks for it
        room = 'cli'
    assert broken_rules(room, path.read_text(encoding='utf-8')) == []


@pytest.mark.parametrize(
    ('room', 'source'),
    [
        ('losses', 'from mmcalib.runs import config'),
        ('hooks', 'def draw():\n    from mmcalib.reports import page'),
        ('reports', 'from mmengine.runner import Runner'),
        ('metrics', 'import mmseg'),
        ('', 'from mmcalib import losses'),
        ('calibrate', 'from mmcalib.tasks.sweep import summary'),
    ],
)
def test_that_a_broken_rule_is_found(room, source):
    assert broken_rules(room, source)


def test_every_room_has_a_rule():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / '__init__.py').is_file()}
    assert rooms == set(FORBIDDEN)
    tasks = {path.parent.name for path in PACKAGE.glob('tasks/*/__init__.py')}
    assert tasks == set(TASKS)
