"""Imports and installation of the package, with and without its optional packages."""

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mmcalib

ROOT = Path(__file__).resolve().parents[1]
TOOLBOXES = ('mmpretrain', 'mmseg', 'mmcv')
# `pip install mmcalib` alone does not install these.
EXTRAS = (*TOOLBOXES, 'mmengine', 'torchvision', 'cv2')
OPTIONAL = (
    *(*TOOLBOXES, 'torchvision', 'joblib', 'sklearn', 'scipy', 'imagecorruptions'),
    *('timm', 'onnx', 'onnxruntime', 'tensorboard'),
)
# .ci/bare runs it where nothing else is installed.
LIBRARY = """
import torch, mmcalib
from torch.utils.data import DataLoader, TensorDataset
from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.posthoc import IsotonicScaler, TemperatureScaler, VectorScaler

torch.manual_seed(0)
inputs, labels = torch.randn(300, 4), torch.randint(3, (300,))
model, loader = torch.nn.Linear(4, 3), DataLoader(TensorDataset(inputs, labels), batch_size=64)
MarginLabelSmoothingLoss()(model(inputs), labels).backward()
every = [name for name in mmcalib.metrics.NAMES]
found = mmcalib.evaluate(model, loader, every, interval=0.95)
assert found.keys() >= {'ECE_low', 'smECE', 'temperature'}
logits = model(inputs).detach()
assert abs(mmcalib.measure(logits.softmax(1), labels, 'NLL') - found['NLL']) < 1e-5
for scaler in (TemperatureScaler(), VectorScaler(), IsotonicScaler()):
    scaler.fit(logits, labels).predict_proba(logits)
for method in ('temperature', 'auto'):
    calibrated = mmcalib.calibrate(model, loader, method=method)
    mmcalib.evaluate(calibrated.model, loader)
mmcalib.reliability_diagram(logits.softmax(1), labels).savefig('/dev/null', format='png')
"""
EVERYTHING = """
import importlib, pkgutil, mmcalib
for module in pkgutil.walk_packages(mmcalib.__path__, 'mmcalib.'):
    importlib.import_module(module.name)
"""
TRAINING = """
import mmcalib.reports.page, mmcalib.runs.runner, mmcalib.commands.sweep.command, mmcalib
mmcalib.register()
"""
ARRAYS = """
from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.metrics import expected_calibration_error
assert round(expected_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1], num_bins=2), 6) == 35
slow = {'mmengine.runner', 'mmengine.hooks', 'cv2', 'matplotlib', 'scipy', 'sklearn'}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""
REMEDY = """
import mmcalib
for find in (
    lambda: mmcalib.openmmlab.hooks, lambda: mmcalib.predict,
    lambda: mmcalib.openmmlab.metrics.CalibrationMetric,
    lambda: mmcalib.openmmlab.calibrated_model.calibrated_model,
):
    try:
        find()
    except ImportError as error:
        assert 'mmcalib[onedl]' in str(error) and 'mmcalib[openmmlab]' in str(error)
    else:
        raise AssertionError
"""


WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in {!r}:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


# Runs each code in a fork of a process that has PyTorch, whose import takes seconds.
FORKS = """
import json, os, sys, traceback
import torch.distributed.optim
for line in sys.stdin:
    code, errors = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        status = 1
        try:
            exec(code, {'__name__': '__main__'})
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run(code, missing=()):
    """Run code in an interpreter in which some packages are missing, and return how it ended."""
    command = [sys.executable, '-c', WITHOUT.format(missing) + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope='module')
def forks():
    with subprocess.Popen(
        [sys.executable, '-c', FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run_with_torch(forks, tmp_path):
    """Function that does so where PyTorch is imported; it returns the status and the errors."""

    def run_code(code, missing=()):
        errors = tmp_path / 'errors'
        request = json.dumps([WITHOUT.format(missing) + code, str(errors)])
        print(request, file=forks.stdin, flush=True)
        return int(forks.stdout.readline()), errors.read_text()

    return run_code


@pytest.mark.parametrize(
    ('code', 'missing'),
    [
        (LIBRARY, EXTRAS),
        (EVERYTHING, TOOLBOXES),
        (TRAINING, (*TOOLBOXES, 'sklearn', 'scipy')),
        (ARRAYS, ()),
        (REMEDY, ('mmengine',)),
    ],
    ids=['library', 'everything', 'training', 'arrays', 'remedy'],
)
def test_import_without_packages_works(code, missing, run_with_torch):
    status, errors = run_with_torch(code, missing)
    assert status == 0, errors


def test_import_of_a_missing_package_fails():
    assert "No module named 'mmseg'" in run('import mmseg', ('mmseg',)).stderr


def test_tool_without_mmengine_says_what_to_install():
    tool = f"runpy.run_path('{ROOT}/tools/train.py', None, '__main__')"
    result = run(f"import runpy; sys.argv = ['train.py', 'a.py']; {tool}", ('mmengine',))
    assert result.returncode == 2 and 'Traceback' not in result.stderr
    assert 'mmcalib[onedl]' in result.stderr and 'mmcalib[openmmlab]' in result.stderr


REGISTERED = """
import importlib, pkgutil
{first}
from mmengine.config import Config
{then}
cfg = Config.fromfile({config!r})
from mmengine.registry import root
def ours():
    return {{
        kind for registry in vars(root).values() if isinstance(registry, root.Registry)
        for kind in registry.module_dict.values() if kind.__module__.startswith('mmcalib.')
    }}
found = ours()
for module in pkgutil.walk_packages(importlib.import_module('mmcalib').__path__, 'mmcalib.'):
    if not module.name.startswith(('mmcalib.runs', 'mmcalib.commands')):
        importlib.import_module(module.name)
assert ours() == found and len(found) > 40, ours() - found
for toolbox in {toolboxes}:
    registries = importlib.import_module(toolbox + '.registry')
    loss = registries.MODELS.build(cfg.loss)
    assert type(loss).__name__ == 'MarginLabelSmoothingLoss' and loss.margin == 8
    assert registries.METRICS.get('ECE').__module__.startswith('mmcalib.')
"""


@pytest.mark.parametrize(
    'code',
    [
        dict(first='import mmcalib.metrics', then='mmcalib.register()', toolboxes=['mmengine']),
        dict(first='import mmengine', then='', toolboxes=['mmseg', 'mmpretrain']),
    ],
    ids=['call', 'custom_imports'],
)
def test_register_by_custom_imports_or_by_a_call_registers_all(code, tmp_path, run_with_torch):
    config = tmp_path / 'config.py'
    config.write_text(
        "custom_imports = dict(imports=['mmcalib'])\n"
        "loss = dict(type='MarginLabelSmoothingLoss', margin=8.0)\n"
    )
    status, errors = run_with_torch(REGISTERED.format(config=str(config), **code))
    assert status == 0, errors


# Runs each order of imports in a fork of a process that has what takes seconds, but not mmengine.
ORDERS = """
import os, sys
import cv2, matplotlib.pyplot, rich.progress, scipy, sklearn, tabulate, torch, torchvision, wcwidth
import yapf.yapflib.yapf_api
assert not {'mmengine', 'mmcalib'} & set(sys.modules)
USE = '''
metric = METRICS.build(dict(type='ECE', num_bins=25))
assert type(metric).__module__.startswith('mmcalib.') and metric.num_bins == 25
from mmengine.registry import HOOKS, MODELS
assert HOOKS.get('LearnFromValidationHook') and MODELS.get('CalibratedModel')
loss = MODELS.build(dict(type='CombinedLoss', losses=[dict(type='MarginLabelSmoothingLoss')]))
from mmcalib.losses import MarginLabelSmoothingLoss
assert isinstance(loss.losses[0], MarginLabelSmoothingLoss)
'''
for code in %r:
    child = os.fork()
    if not child:
        failed = 1
        try:
            exec(code.replace('; ', chr(10)) + USE, {})
            failed = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(failed)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(code)
"""
IMPORTS = [
    'import mmcalib; from mmengine.registry import METRICS',
    'from mmengine.registry import METRICS; import mmcalib',
    'import mmcalib; import mmengine.registry; METRICS = mmengine.registry.METRICS',
    'import mmcalib, importlib.util; assert importlib.util.find_spec("mmengine"); '
    'from mmengine.registry import METRICS',
    'import mmcalib; mmcalib.register(); from mmengine.registry import METRICS',
    # These import mmengine themselves, while they are half imported.
    'from mmcalib.openmmlab.hooks import SameBuffersHook; from mmengine.registry import METRICS',
    'from mmcalib.openmmlab.metrics import ECE; from mmengine.registry import METRICS',
    'import mmcalib; mmcalib.openmmlab.transforms; from mmengine.registry import METRICS',
    'import mmcalib.openmmlab.models; from mmengine.registry import METRICS',
    'from mmcalib.losses import ACLSLoss; from mmengine.registry import METRICS',
    # Toolboxes.
    'import mmcalib; from mmseg.registry import METRICS',
    'from mmcalib.losses import ACLSLoss; from mmpretrain.registry import METRICS',
]


def test_imports_in_any_order_register_all(run_with_torch):
    status, errors = run_with_torch(ORDERS % (IMPORTS,))
    assert status == 0, errors


def test_registering_without_optional_packages_works(run_with_torch):
    status, errors = run_with_torch('import mmcalib, mmengine\nmmcalib.register()', OPTIONAL)
    assert status == 0, errors


LIGHT = """
import sys, mmcalib
for name in ('torch', 'numpy', 'mmengine', 'rich', 'matplotlib'):
    assert name not in sys.modules, name
"""


def test_import_of_the_package_imports_nothing_heavy():
    result = run(LIGHT)
    assert result.returncode == 0, result.stderr


def test_package_without_mmengine_leaves_its_import_as_it_is():
    code = 'import mmcalib, importlib.util\nassert not importlib.util.find_spec("mmengine")\n'
    result = run(f'{code}import mmengine', ('mmengine',))
    assert "ModuleNotFoundError: No module named 'mmengine'" in result.stderr


def test_public_names_late_imports_are_listed_and_declared_for_type_checkers():
    assert dir(mmcalib) == sorted(mmcalib.__all__)
    values = {name: getattr(mmcalib, name) for name in mmcalib.__all__}
    # The import system puts a module over a function of the same name.
    modules = {name for name, value in values.items() if inspect.ismodule(value)}
    assert modules == {*mmcalib.ROOMS} and callable(values['calibrate'])
    assert not hasattr(mmcalib, 'nothing_of_this_name')
    for room in ('losses.MarginLabelSmoothingLoss', 'metrics.StreamingMetrics'):
        with pytest.raises(AttributeError, match=f'from mmcalib.{room.split(".")[0]} import'):
            getattr(mmcalib, room.split('.')[1])
    nodes = ast.walk(ast.parse(inspect.getsource(mmcalib)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    declared = {alias.name for node in imports for alias in node.names}
    assert {*mmcalib.PUBLIC} <= declared


@pytest.mark.parametrize('name', ['losses', 'metrics', 'openmmlab.metrics', 'posthoc'])
def test_rooms_public_names_are_no_modules(name):
    room = importlib.import_module(f'mmcalib.{name}')
    nodes = ast.walk(ast.parse(inspect.getsource(room)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    public = {alias.asname for node in imports for alias in node.names} - {None}
    assert len(public) > 5
    assert not [name for name in public if inspect.ismodule(getattr(room, name))]


def test_wheel_has_configs_and_tools(tmp_path):
    copy = tmp_path / 'copy'  # A build may leave files.
    installed = tmp_path / 'installed'
    ignored = shutil.ignore_patterns('.mim', '__pycache__')
    for name in ('mmcalib', 'configs', 'tools'):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'model-index.yml'):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
    subprocess.run([sys.executable, '-c', build], check=True, cwd=copy, capture_output=True)
    (wheel,) = copy.glob('wheel/*.whl')
    assert mmcalib.__version__ in wheel.name
    shutil.unpack_archive(wheel, installed, 'zip')
    names = {path.relative_to(installed).as_posix() for path in installed.rglob('*')}
    sources = [*copy.glob('configs/**/*.*'), *copy.glob('tools/*.*'), copy / 'model-index.yml']
    expected = {f'mmcalib/.mim/{path.relative_to(copy).as_posix()}' for path in sources}
    pages = {path.relative_to(copy).as_posix() for path in copy.glob('mmcalib/**/*.html')}
    assert expected | pages | {'mmcalib/reports/paper_numbers.json', 'mmcalib/py.typed'} <= names
    assert not [name for name in names if re.match('tests|.*/(benchmarks|maintenance)/', name)]
    (entry_points,) = installed.glob('*/entry_points.txt')
    assert 'mmcalib = mmcalib.__main__:main' in entry_points.read_text()
    command = [sys.executable, '-m', 'mmcalib', 'train', '--help']
    environment = os.environ | {'PYTHONPATH': str(installed)}
    output = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert output.startswith('usage: mmcalib train')


def test_ci_commands_are_those_of_the_readme():
    command = 'pip install -e ".[onedl,test]" && pytest'
    for name in ('README.md', '.ci/run'):
        assert command in (ROOT / name).read_text().splitlines()
