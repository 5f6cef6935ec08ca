"""What importing and installing the package does."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from mmengine.registry import MODELS
from setuptools.config.pyprojecttoml import load_file

import mmcalib
from mmcalib.checks import GONE

ROOT = Path(__file__).resolve().parents[1]

# Only an import fails, since PyTorch 2.3 looks for scikit-learn without importing it.
BLOCK = """
import sys
from importlib.machinery import ModuleSpec
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked!r}:
            return ModuleSpec(name, self)
    def create_module(self, spec):
        raise ModuleNotFoundError(f'No module named {{spec.name!r}}', name=spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Block())
"""


def run(code, blocked):
    return subprocess.run(
        [sys.executable, '-c', BLOCK.format(blocked=blocked) + code],
        capture_output=True,
        text=True,
        check=False,
    )


def test_neither_toolboxes_nor_what_is_slow_are_imported():
    toolboxes = ('mmpretrain', 'mmseg', 'mmcv')
    everything = """
import importlib, pkgutil, mmcalib
for module in pkgutil.walk_packages(mmcalib.__path__, 'mmcalib.'):
    importlib.import_module(module.name)
"""
    tools = 'import mmcalib.reports.page, mmcalib.runs.runner, mmcalib.tasks.sweep.sweep, mmcalib\n'
    for code, blocked in (
        (everything, toolboxes),
        (f'{tools}mmcalib.register()', (*toolboxes, 'sklearn', 'scipy')),
    ):
        result = run(code, blocked)
        assert result.returncode == 0, result.stderr


def test_that_the_block_above_blocks():
    assert run('import mmpretrain', ('mmpretrain',)).returncode != 0


def test_without_mmengine_both_extras_are_named():
    code = """
import mmcalib
for find in (
    lambda: mmcalib.hooks, lambda: mmcalib.predict, lambda: mmcalib.metrics.CalibrationMetric,
    lambda: mmcalib.posthoc.calibrated_model,
):
    try:
        find()
    except ImportError as error:
        assert 'mmcalib[onedl]' in str(error) and 'mmcalib[openmmlab]' in str(error)
    else:
        raise AssertionError
"""
    result = run(code, ('mmengine',))
    assert result.returncode == 0, result.stderr


def test_a_tool_without_mmengine_says_what_to_install():
    code = "import runpy, sys, importlib.util; sys.argv = ['train.py', 'a.py']\n"
    code += 'importlib.util.find_spec = lambda name: None\n'
    code += f"runpy.run_path({str(ROOT / 'tools/train.py')!r}, run_name='__main__')"
    result = run(code, ('mmengine',))
    assert result.returncode == 2 and 'Traceback' not in result.stderr
    assert 'mmcalib[onedl]' in result.stderr and 'mmcalib[openmmlab]' in result.stderr


def test_arrays_and_losses_need_neither_mmengine_nor_what_is_slow():
    code = """
import torch
from mmcalib.losses import CombinedLoss, MarginLabelSmoothingLoss, margin_label_smoothing
from mmcalib.metrics import expected_calibration_error
probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], [0, 1, 1, 0]
assert round(expected_calibration_error(probs, labels, num_bins=2), 6) == 25
logits = torch.tensor([[12.0, 0.0, 0.0]])
row = margin_label_smoothing(logits, torch.tensor([0]), margin=10.0, alpha=0.1)
assert round(row.item(), 4) == 0.1333
loss = MarginLabelSmoothingLoss()
assert torch.equal(loss(logits, torch.tensor([0])), row[0])
assert torch.equal(CombinedLoss(losses=[loss, loss])(logits, torch.tensor([0])), 2 * row[0])
"""
    result = run(code, ('mmengine', 'sklearn', 'scipy', 'matplotlib', 'cv2'))
    assert result.returncode == 0, result.stderr


def test_diagrams_and_scalers_need_no_mmengine():
    code = """
import mmcalib
from mmcalib.posthoc import VectorScaler
mmcalib.reliability_diagram([[0.9, 0.1], [0.2, 0.8]], [0, 0])
logits = [[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.0]]
VectorScaler().fit(logits, [0, 1, 1, 0]).transform(logits)
"""
    result = run(code, ('mmengine',))
    assert result.returncode == 0, result.stderr


def test_arrays_do_not_wait_for_the_runner():
    code = """
import sys
from mmcalib.losses import brier
from mmcalib.metrics import expected_calibration_error
slow = {'mmengine.runner', 'mmengine.hooks', 'mmengine.optim', 'cv2', 'matplotlib', 'scipy'}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""
    result = run(code, ())
    assert result.returncode == 0, result.stderr


REGISTERED = """
import importlib, pkgutil
{first}
from mmengine.config import Config
{then}
cfg = Config.fromfile({config!r})
from {toolbox}.registry import DATASETS, HOOKS, METRICS, MODELS, TRANSFORMS
loss = MODELS.build(cfg.loss)
assert type(loss).__name__ == 'MarginLabelSmoothingLoss' and loss.margin == 8
for registry, name in (
    (HOOKS, 'ReliabilityDiagramHook'), (METRICS, 'ECE'), (METRICS, 'OODMetric'),
    (DATASETS, 'Digits'), (TRANSFORMS, 'Corrupt'), (MODELS, 'MeanProbabilityModel'),
    (MODELS, 'CalibratedModel'),
):
    assert registry.get(name).__module__.startswith('mmcalib.'), name
from mmengine.registry import root
found = {{
    kind for registry in vars(root).values() if isinstance(registry, root.Registry)
    for kind in registry.module_dict.values() if kind.__module__.startswith('mmcalib.')
}}
for room in {rooms!r}:
    package = importlib.import_module(f'mmcalib.{{room}}')
    for module in pkgutil.walk_packages(package.__path__, f'{{package.__name__}}.'):
        importlib.import_module(module.name)
now = {{
    kind for registry in vars(root).values() if isinstance(registry, root.Registry)
    for kind in registry.module_dict.values() if kind.__module__.startswith('mmcalib.')
}}
assert now == found and len(found) > 40, now - found
"""
LIBRARY = (
    'datasets', 'ensembles', 'hooks', 'losses', 'metrics', 'models', 'posthoc', 'samples',
    'transforms', 'visualization',
)  # fmt: skip


@pytest.mark.parametrize(
    ('toolbox', 'first', 'then'),
    [
        ('mmengine', 'import mmcalib.metrics', 'mmcalib.register()'),
        ('mmseg', 'import mmengine', ''),
        ('mmpretrain', 'import mmengine', ''),
    ],
)
def test_all_is_registered_by_custom_imports_or_by_a_call(tmp_path, toolbox, first, then):
    config = tmp_path / 'config.py'
    config.write_text(
        "custom_imports = dict(imports=['mmcalib'])\n"
        "loss = dict(type='MarginLabelSmoothingLoss', margin=8.0)\n"
    )
    code = REGISTERED.format(
        config=str(config), toolbox=toolbox, rooms=LIBRARY, first=first, then=then
    )
    result = run(code, ())
    assert result.returncode == 0, result.stderr


def test_what_failed_to_register_is_tried_again():
    code = """
import mmcalib
class Once:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmcalib.posthoc.attached_model':
            raise ImportError(name)
sys.meta_path.insert(0, Once())
try:
    mmcalib.register()
except ImportError:
    del sys.meta_path[0]
    mmcalib.register()
from mmengine.registry import MODELS, TRANSFORMS
assert MODELS.get('CalibratedModel') and TRANSFORMS.get('Corrupt') and MODELS.get('BrierLoss')
"""
    result = run(code, ())
    assert result.returncode == 0, result.stderr


ROOMS = {*LIBRARY} - {'samples'}
LISTED = ('', 'ensembles', 'metrics', 'posthoc', 'visualization')


@pytest.mark.parametrize('name', LISTED)
def test_only_public_names_are_listed(name):
    package = getattr(mmcalib, name) if name else mmcalib
    assert dir(package) == sorted(package.__all__)
    found = {public: getattr(package, public) for public in package.__all__}
    # The import system puts a module over a function of the same name.
    modules = {public for public, value in found.items() if inspect.ismodule(value)}
    assert modules == (set() if name else ROOMS)
    assert not hasattr(package, 'nothing_of_this_name')


def test_names_that_are_late_are_public_and_declared_for_type_checkers():
    for package in (mmcalib, mmcalib.metrics, mmcalib.posthoc):
        tree = ast.parse(Path(package.__file__).read_text())
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert set(package.__all__) - {'__version__', 'register'} <= imported


def test_what_is_imported_is_declared():
    project = load_file(ROOT / 'pyproject.toml')['project']
    dependencies = project['dependencies'] + project['optional-dependencies']['tools']
    declared = {re.match(r'[\w-]+', each)[0].lower() for each in dependencies}
    distributions = {'cv2': 'opencv-python', 'PIL': 'pillow', 'sklearn': 'scikit-learn'}
    of_the_extras = {'mmengine', 'mmcv', 'mmpretrain', 'mmseg', 'timm', 'imagecorruptions'}
    of_the_extras |= {'onnx', 'onnxruntime'}
    beside = {path.stem for path in (ROOT / 'tools').glob('*/*.py')}
    imported = set()
    for folder in ('mmcalib', 'tools'):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split('.')[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(node.module.split('.')[0])
    imported -= {*sys.stdlib_module_names, *of_the_extras, *beside, 'mmcalib'}
    assert {distributions.get(name, name) for name in imported} <= declared


@pytest.fixture
def copy(tmp_path):
    """The files that a build reads, where it may leave others."""
    ignored = shutil.ignore_patterns('.mim', '__pycache__')
    for name in ('mmcalib', 'configs', 'tools'):
        shutil.copytree(ROOT / name, tmp_path / 'copy' / name, ignore=ignored)
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'model-index.yml'):
        shutil.copy(ROOT / name, tmp_path / 'copy')
    return tmp_path / 'copy'


def built(copy, kind):
    build = f'from setuptools import build_meta; build_meta.build_{kind}("wheel")'
    subprocess.run([sys.executable, '-c', build], check=True, cwd=copy, capture_output=True)
    (wheel,) = copy.glob('wheel/*.whl')
    return zipfile.ZipFile(wheel)


def test_the_wheel_carries_configs_and_tools(copy, tmp_path):
    content = built(copy, 'wheel')
    assert mmcalib.__version__ in content.filename
    names = set(content.namelist())
    sources = [*ROOT.glob('configs/**/*.*'), *ROOT.glob('tools/*.*'), ROOT / 'model-index.yml']
    sources = [path for path in sources if path.suffix != '.pyc']
    expected = {f'mmcalib/.mim/{path.relative_to(ROOT).as_posix()}' for path in sources}
    pages = {path.relative_to(ROOT).as_posix() for path in ROOT.glob('mmcalib/**/*.html')}
    expected |= {'mmcalib/reports/paper_numbers.json', 'mmcalib/py.typed', *pages}
    assert expected <= names
    assert not [name for name in names if re.match('tests|.*/(benchmarks|maintenance)/', name)]
    (entry_points,) = (name for name in names if name.endswith('entry_points.txt'))
    assert b'mmcalib = mmcalib.__main__:main' in content.read(entry_points)
    content.extractall(tmp_path / 'installed')
    result = subprocess.run(
        [sys.executable, '-m', 'mmcalib', 'train', '--help'],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(tmp_path / 'installed')},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith('usage: mmcalib train')


def test_an_editable_install_is_a_path_that_type_checkers_read(copy):
    file = built(copy, 'editable')
    (path,) = (name for name in file.namelist() if name.endswith('.pth'))
    assert file.read(path).decode().strip() == str(copy)
    assert (copy / 'mmcalib/.mim/configs').samefile(copy / 'configs')


def test_the_commands_of_ci_are_those_of_the_readme():
    command = 'pip install -e ".[onedl,test]" && pytest'
    assert command in (ROOT / 'README.md').read_text().splitlines()
    assert command in (ROOT / '.ci' / 'run').read_text().splitlines()


@pytest.mark.parametrize('path', sorted((ROOT / 'tools').glob('*.sh')), ids=lambda p: p.name)
def test_shell_scripts_say_how_they_are_called(path):
    result = subprocess.run(['bash', path], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and f'Usage: tools/{path.name}' in result.stderr


@pytest.mark.parametrize('name', [name for name in GONE if name[0].isupper() and '.' not in name])
def test_a_name_that_is_gone_says_what_to_use(name):
    mmcalib.register()
    with pytest.raises(ValueError, match=f'{name} is gone since .*: {re.escape(GONE[name])}'):
        MODELS.build(dict(type=name))


def test_any_torch_model_is_calibrated_without_openmmlab():
    code = """
import torch, mmcalib
net, inputs = torch.nn.Linear(3, 4), torch.randn(40, 3)
batches = [(inputs, torch.arange(40) % 4)]
for method in ('temperature', 'ets'):
    assert mmcalib.calibrate(net, batches, method=method).num_predictions == 40
"""
    result = run(code, ('mmengine', 'mmcv', 'mmpretrain', 'mmseg', 'torchvision', 'cv2'))
    assert result.returncode == 0, result.stderr
