"""Which room of the package may import which; house rules that a reader can rely on."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / 'mmcalib'
TOOLBOXES = ('mmpretrain', 'mmseg', 'mmcv')
ABOVE = 'runs reports tasks'  # the library
HIGH = f'posthoc ensembles visualization hooks {ABOVE}'
# What a room may not import.
FORBIDDEN = {
    'losses': f'metrics {HIGH}',
    'samples': f'losses metrics {HIGH}',
    'metrics': f'losses {HIGH}',
    'transforms': f'losses metrics {HIGH}',
    'datasets': f'losses metrics {HIGH}',
    'models': f'losses metrics {HIGH}',
    'posthoc': f'losses visualization hooks datasets {ABOVE}',
    'ensembles': f'losses posthoc visualization hooks datasets {ABOVE}',
    'visualization': f'losses posthoc ensembles hooks datasets models {ABOVE}',
    'hooks': ABOVE,
    'reports': 'losses posthoc ensembles hooks datasets models runs tasks',
    'runs': 'reports tasks',
    'tasks': '',
    'calibrate': 'reports sweep predict robustness export',
    'sweep': 'calibrate predict robustness export',
    'predict': 'sweep robustness export',
    'robustness': 'sweep predict export',
    'export': 'reports calibrate sweep robustness',
}
# It parses before torch is imported; an error asks `runs` for the nearest name.
FORBIDDEN['cli'] = ' '.join({*FORBIDDEN} - {'runs'})
FORBIDDEN[''] = ' '.join(FORBIDDEN)  # modules at the top serve all rooms, so use none
# Rooms that know nothing of a training or a test.
NO_RUNNER = ('visualization', 'reports')
RUNNER_PACKAGES = ('mmengine.runner', 'mmengine.hooks', 'mmengine.model')


def imports(source):
    """Yield every imported module with whether the import runs when the module is imported."""
    nodes = [(ast.parse(source), True)]
    for node, at_import in nodes:
        at_import &= not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        nodes += [(child, at_import) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f'{node.module}.{alias.name}', at_import) for alias in node.names)


def broken_rules(room, source):
    """Return what a module of a room imports and may not."""
    broken = []
    for name, at_import in imports(source):
        top, *rest = name.split('.')
        used = set(rest[: 2 if rest[:1] == ['tasks'] else 1]) if top == 'mmcalib' else set()
        runner = room in NO_RUNNER and name.startswith(RUNNER_PACKAGES)
        if used & {*FORBIDDEN[room].split()} or runner or (top in TOOLBOXES and at_import):
            broken.append(name)
    return broken


def test_imports_run_one_way():
    broken = {}
    for path in PACKAGE.rglob('*.py'):
        parts = path.relative_to(PACKAGE).parts
        if '.mim' in parts or parts == ('__init__.py',):
            continue
        room = parts[1] if parts[0] == 'tasks' and len(parts) > 2 else parts[0] if parts[1:] else ''
        if path.name == '__main__.py':  # of the command line, where Python looks for it
            room = 'cli'
        broken[path] = broken_rules(room, path.read_text(encoding='utf-8'))
    assert len(broken) > 100
    assert {path: names for path, names in broken.items() if names} == {}


def test_that_a_broken_rule_is_found():
    for room, source in (
        ('losses', 'from mmcalib.runs import config'),
        ('hooks', 'def draw():\n    from mmcalib.reports import page'),
        ('reports', 'from mmengine.runner import Runner'),
        ('metrics', 'import mmseg'),
        ('', 'from mmcalib import losses'),
        ('calibrate', 'from mmcalib.tasks.sweep import summary'),
        ('runs', 'from mmcalib.tasks.sweep import summary'),
    ):
        assert broken_rules(room, source), source
    assert not broken_rules('metrics', 'def f():\n    import mmseg')


def test_every_room_has_a_rule():
    rooms = {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
    tasks = {path.parent.name for path in PACKAGE.glob('tasks/*/__init__.py')}
    assert rooms | tasks | {''} == set(FORBIDDEN)
