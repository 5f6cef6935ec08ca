"""What importing and installing the package does."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mmcalib

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
        raise ImportError(spec.name)
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


def test_neither_toolboxes_nor_scikit_learn_nor_scipy_are_imported():
    code = (
        'import mmcalib, mmcalib.datasets.unpacked_data_check, mmcalib.reports.html, '
        'mmcalib.calibrate.calibrate_checkpoint, mmcalib.sweep.execute_sweep, mmcalib.runs.runner'
    )
    assert run(code, ('mmpretrain', 'mmseg', 'mmcv', 'sklearn', 'scipy')).returncode == 0


def test_that_the_block_above_blocks():
    assert run('import mmpretrain', ('mmpretrain',)).returncode != 0


def test_without_mmengine_both_extras_are_named():
    result = run('import mmcalib.hooks', ('mmengine',))
    assert result.returncode != 0
    assert 'mmcalib[onedl]' in result.stderr and 'mmcalib[openmmlab]' in result.stderr


def test_what_is_imported_is_declared():
    requirements = re.search(
        r'install_requires=\[(.*?)\]', (ROOT / 'setup.py').read_text(), re.DOTALL
    ).group(1)
    declared = {name.lower() for name in re.findall(r"'([\w-]+)", requirements)}
    distributions = {'cv2': 'opencv-python', 'PIL': 'pillow', 'sklearn': 'scikit-learn'}
    of_the_extras = {'mmengine', 'mmcv', 'mmpretrain', 'mmseg', 'timm', 'imagecorruptions'}
    compared = {'betacal', 'netcal', 'probmetrics', 'venn_abers'}  # by tools/benchmarks/scalers.py
    beside = {path.stem for path in (ROOT / 'tools/maintenance').glob('*.py')}
    imported = set()
    for folder in ('mmcalib', 'tools'):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split('.')[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(node.module.split('.')[0])
    imported -= {*sys.stdlib_module_names, *of_the_extras, *compared, *beside, 'mmcalib'}
    assert {distributions.get(name, name) for name in imported} <= declared


def test_the_wheel_carries_configs_and_tools(tmp_path):
    subprocess.run(
        [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w', str(tmp_path), str(ROOT)],
        check=True,
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob('*.whl')
    assert mmcalib.__version__ in wheel.name
    content = zipfile.ZipFile(wheel)
    names = set(content.namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ('configs', 'tools')
        for path in (ROOT / folder).rglob('*')
        if path.suffix in {'.py', '.sh', '.yml'}
    }
    expected = {f'mmcalib/.mim/{name}' for name in (*sources, 'model-index.yml')}
    expected.add('mmcalib/reports/paper_numbers.json')
    assert expected <= names
    assert not any(name.startswith('tests') for name in names)
    (entry_points,) = (name for name in names if name.endswith('entry_points.txt'))
    assert b'mmcalib = mmcalib.cli.__main__:main' in content.read(entry_points)
    content.extractall(tmp_path / 'installed')
    result = subprocess.run(
        [sys.executable, '-m', 'mmcalib.cli', 'train', '--help'],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(tmp_path / 'installed')},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith('usage: mmcalib train')


def test_the_commands_of_ci_are_those_of_the_readme():
    command = 'pip install -e ".[onedl,test]" && pytest'
    assert command in (ROOT / 'README.md').read_text().splitlines()
    assert command in (ROOT / '.ci' / 'run').read_text().splitlines()


@pytest.mark.parametrize('path', sorted((ROOT / 'tools').glob('*.sh')), ids=lambda p: p.name)
def test_shell_scripts_say_how_they_are_called(path):
    result = subprocess.run(['bash', path], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and f'Usage: tools/{path.name}' in result.stderr
