"""The files that single tests under shift leave, and what is said of them in robustness.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config

from mmcalib import __version__
from mmcalib.reports.results_reader import ReportedRun
from mmcalib.robustness.shifts import Shift

# How a loader is fed says nothing about what it gives.
OF_THE_MACHINE = ('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor')


def key_of(cfg: Config, shift: Shift, identity: str, data: str) -> str:
    """Return what is equal where a test would give the same numbers.

    Args:
        cfg: Of the tests.
        shift: What is tested on.
        identity: The digest of the checkpoint.
        data: What tells these data from others.
    """
    loader = {key: value for key, value in shift.loader.items() if key not in OF_THE_MACHINE}
    parts = [cfg.model, cfg.get('data_preprocessor'), _anywhere(loader), cfg.test_evaluator]
    parts += [cfg.get('limit'), cfg.test_cfg, data]
    text = json.dumps([identity, __version__, parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def left_by_earlier_call(file: Path, key: str, index: int) -> dict | None:
    """Return the test that a file holds, None if it is missing, broken, or of something else.

    So is one whose confidence map is of another image.
    """
    try:
        test = json.loads(file.read_text(encoding='utf-8'))
        return test if test['key'] == key and test.get('image', index) == index else None
    except (AttributeError, OSError, KeyError, TypeError, ValueError):
        return None


def file_of(folder: Path, shift: Shift) -> Path:
    """Return where the metrics of a test go; its statistics lie beside them."""
    kind = 'data_' if shift.kind == 'data' else ''  # which may be called fog_3
    return folder / f'{kind}{shift.text.replace(" ", "_")}.json'


def map_of(file: Path) -> Path:
    """Return where the confidence map of a test goes, by the file of its metrics."""
    return file.with_name(f'{file.stem}_map.npz')


def label_of(experiment: str, about: Mapping) -> str:
    """Return the loss of a checkpoint, and how it was calibrated, as tables name them."""
    known = {key: about[key] for key in ('loss', 'calibration')}
    return ReportedRun('', experiment, {}, **known).label


def entry_of(
    checkpoint: str,
    label: str,
    shifts: Sequence[Shift],
    tests: Sequence[dict],
    folder: Path,
    work_dir: str | Path,
) -> dict:
    """Return what is said of a checkpoint: itself, and a test for each shift."""
    about = tests[0]['about']
    entry = {'checkpoint': str(checkpoint), 'label': label, **about, 'tests': []}
    for shift, test in zip(shifts, tests, strict=True):
        file = file_of(folder, shift)
        statistics, view = file.with_suffix('.npz'), map_of(file)
        entry['tests'].append(
            {
                'kind': shift.kind,
                'name': shift.name,
                'severity': shift.severity,
                **_made(shift),
                'metrics': test['metrics'],
                'statistics': str(statistics.relative_to(work_dir)),
                **({'map': str(view.relative_to(work_dir))} if view.is_file() else {}),
            }
        )
    return entry


def _made(shift: Shift) -> dict:
    """Return by what the images of a corruption have become what they are."""
    if shift.kind != 'corruption':
        return {}
    return {'stored': Path(shift.stored).resolve().name} if shift.stored else {'seed': shift.seed}


def _anywhere(node: object) -> object:
    """Return a part of a config without where its data lie, which may be moved."""
    if isinstance(node, Mapping):
        return {key: _anywhere(value) for key, value in node.items() if key != 'data_root'}
    return [_anywhere(item) for item in node] if isinstance(node, (list, tuple)) else node
