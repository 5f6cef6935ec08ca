"""The file that each test under shift leaves, and robustness.json, which collects them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process

from mmcalib import __version__
from mmcalib.reports.robustness_results import KINDS, made_by, write_robustness
from mmcalib.tasks.robustness.shifts import Shift
from mmcalib.transforms.corruption_names import CORRUPTIONS
from mmcalib.work_dir import ROBUSTNESS

# Options that change the speed of a loader, and not its samples.
OF_THE_MACHINE = ('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor')


def key_of(cfg: Config, shift: Shift, identity: str) -> str:
    """Return a digest that is equal where a test would give the same numbers.

    Args:
        cfg: Config of the tests.
        shift: The test set.
        identity: The digest of the checkpoint.
    """
    loader = {key: value for key, value in shift.loader.items() if key not in OF_THE_MACHINE}
    parts = [cfg.model, cfg.get('data_preprocessor'), loader, cfg.test_evaluator]
    parts += [cfg.get('limit'), cfg.test_cfg]
    text = json.dumps([identity, __version__, parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_of(folder: Path, shift: Shift) -> Path:
    """Return the file for a test, beside which its statistics and confidence map lie."""
    kind = 'data_' if shift.kind == 'data' else ''  # which may be called fog_3
    return folder / f'{kind}{shift.text.replace(" ", "_")}.json'


def left_by_earlier_call(file: Path, key: str, index: int) -> dict | None:
    """Return the test in a file, None if its weights, data, options or image were others."""
    left = _read(file)
    return left if left.get('key') == key and left.get('image', index) == index else None


def _read(file: Path) -> dict:
    """Return the content of a test's file, nothing if it is missing or cut off."""
    try:
        return json.loads(file.read_text(encoding='utf-8'))
    except (FileNotFoundError, ValueError):
        return {}


def collect(
    work_dir: str | Path, content: Mapping, settings: str, to_come: Collection[Path] = ()
) -> dict:
    """Collect the tests in a work dir with some settings into ``robustness.json``, and return it.

    Checkpoints are in the order in which calls last asked for them. If the weights at a path were
    replaced, those asked for last are listed; so are, if a checkpoint was tested on corruptions by
    several seeds or from several stored sets, those asked for last.

    Args:
        work_dir: The folder with the tests.
        content: The other keys of the file.
        settings: The digest that the tests must have.
        to_come: The files of tests that will be repeated, which are left out.
    """
    if not is_main_process():
        return {**content, 'checkpoints': []}
    files = sorted(set(Path(work_dir, 'tests').glob('*/[!.]*.json')) - set(to_come))
    found = [left for left in map(_read, files) if left.get('settings') == settings]
    tests, clean, made = defaultdict(dict), {}, {}
    for left in sorted(found, key=lambda left: left['asked']):
        test, digest = left['test'], left['digest']
        tests[digest][_place(test)] = test
        if test['kind'] == 'clean':
            clean[digest] = left
        elif test['kind'] == 'corruption':
            made[digest] = made_by(test)
    entries = {}
    for digest, left in clean.items():
        path, rest = left['checkpoint'], [test for _, test in sorted(tests[digest].items())]
        rest = [t for t in rest if t['kind'] != 'corruption' or made_by(t) == made[digest]]
        entries[path] = {'digest': digest, 'checkpoint': path, **left['about'], 'tests': rest}
    content = {**content, 'checkpoints': list(entries.values())}
    if entries:
        write_robustness(work_dir, content)
    else:
        Path(work_dir, ROBUSTNESS).unlink(missing_ok=True)
    return content


def _place(test: Mapping) -> tuple[int, int, int, str]:
    """Return a key that sorts the tests of a checkpoint."""
    kind, name, severity = test['kind'], test['name'], test['severity']
    number = CORRUPTIONS.index(name) if kind == 'corruption' else 0
    return KINDS.index(kind), number, severity, name
