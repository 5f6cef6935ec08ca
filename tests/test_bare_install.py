"""What ``pip install mmcalib`` brings, without an extra, is enough for any torch model."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import load_file

ROOT = Path(__file__).resolve().parents[1]
PROJECT = load_file(ROOT / 'pyproject.toml')['project']
ONLY = """
import sys

class Only:  # as if nothing else were installed, also for those who ask without importing
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.split('.')[0]
        if top in sys.stdlib_module_names or top in {allowed!r}:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Only(finder) for finder in sys.meta_path if hasattr(finder, 'find_spec')]
"""
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


def plain(name):
    return re.sub('[-_.]+', '-', name).lower()


def closure(requirements):
    """Return the distributions that pip installs for requirements."""
    found, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        need = waiting.pop()
        name = plain(need.name)
        if name not in found and (need.marker is None or need.marker.evaluate({'extra': ''})):
            found.add(name)
            try:
                waiting += map(Requirement, distribution(name).requires or ())
            except PackageNotFoundError:  # such as one of CUDA's, on a machine without it
                continue
    return found


def run(code):
    installed = closure(PROJECT['dependencies'])
    tops = packages_distributions().items()
    allowed = {top for top, names in tops if installed & set(map(plain, names))}
    code = ONLY.format(allowed=allowed | {'mmcalib'}) + code
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)


def test_the_library_works_with_nothing_else():
    found = run(LIBRARY)
    assert found.returncode == 0, found.stderr


def test_that_all_else_is_blocked():
    for name in ('mmengine', 'cv2', 'torchvision', 'tabulate'):
        assert f"No module named '{name}'" in run(f'import {name}').stderr


def test_what_the_install_brings_and_what_the_page_says():
    names = {Requirement(text).name for text in PROJECT['dependencies']}
    assert names == {'torch', 'numpy', 'scipy', 'scikit-learn', 'matplotlib', 'rich'}
    page = (ROOT / 'docs/start/install.md').read_text('utf-8')
    bare = next(line for line in page.splitlines() if line.startswith('| any torch model'))
    assert all(name in bare for name in names - {'torch'})
