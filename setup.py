"""Configs and tools go into the package as `mmcalib/.mim`; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
NOT_SHIPPED = shutil.ignore_patterns('__pycache__', 'benchmarks', 'maintenance')


class BuildWithMim(build_py):
    """Put there what `mim`, and `_base_ = 'mmcalib::…'`, look for: copies, or links if editable."""

    def run(self):
        super().run()
        editable = getattr(self, 'editable_mode', False)
        mim = (ROOT if editable else Path(self.build_lib)) / 'mmcalib' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for source in (ROOT / 'configs', ROOT / 'tools', ROOT / 'model-index.yml'):
            if editable:
                (mim / source.name).symlink_to(source)
            elif source.is_dir():
                shutil.copytree(source, mim / source.name, ignore=NOT_SHIPPED)
            else:
                shutil.copy2(source, mim)


setup(cmdclass={'build_py': BuildWithMim})
