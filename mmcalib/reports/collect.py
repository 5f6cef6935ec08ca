"""The tested runs below some folders, read from the ``results.json`` that every test leaves."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmcalib.reports.loss_labels import loss_label
from mmcalib.run_files import RESULTS, VALIDATION_RESULTS

LOG_FOLDER = re.compile(r'\d{8}_\d{6}')  # mmengine names it by the time of the start


@dataclass
class ReportedRun:
    """What one results.json says; older ones lack all but the experiment and the metrics."""

    path: str
    experiment: str
    metrics: dict
    seed: int | None = None
    loss: dict | None = None
    calibration: dict | None = None
    training: dict = field(default_factory=dict)
    evaluation: dict | None = None
    date: str = ''

    @property
    def table(self) -> str:
        """Data and network, as the config files are named under every loss."""
        return self.experiment.split('/')[-1].removesuffix('_m0')

    @property
    def row(self) -> str:
        """What must be equal in all runs that are averaged."""
        if self.loss is None:
            return self.experiment
        length = [self.training.get(key) for key in ('epochs', 'iterations')]
        return json.dumps([self.loss, self.calibration, length], sort_keys=True)

    @property
    def evaluation_key(self) -> str:
        return json.dumps(self.evaluation, sort_keys=True)

    @property
    def label(self) -> str:
        label = loss_label(self.loss) if self.loss else self.experiment
        if not self.calibration:
            return label
        forced = ''.join(f', {reason}' for reason in self.calibration['forced'])
        return f'{label} + {" + ".join(self.calibration["methods"])}{forced}'


def collect_runs(folders: Sequence[str]) -> tuple[list[ReportedRun], dict[str, list[str]]]:
    """Return the tested runs below some folders, and the paths of the others by what they lack.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    for folder in dict.fromkeys(
        path for root in folders for path in sorted([Path(root), *Path(root).rglob('*/')])
    ):
        if (folder / RESULTS).is_file():
            try:
                runs.append(read_results(folder / RESULTS))
            except (KeyError, ValueError):
                others[f'unreadable {RESULTS}'].append(str(folder))
        elif (folder / VALIDATION_RESULTS).is_file():
            others['not tested, only validated'].append(str(folder))
        elif (folder / 'last_checkpoint').is_file() or _has_log(folder):
            others[f'unfinished or not tested, no {RESULTS}'].append(str(folder))
    if not runs:
        found = ''.join(f'; {reason}: {", ".join(paths)}' for reason, paths in others.items())
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}{found}')
    return runs, dict(others)


def read_results(path: Path) -> ReportedRun:
    """Read a results.json, of this version or an older one.

    Raises:
        KeyError: If a part is missing.
        ValueError: If it is another file.
    """
    content = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(content, dict) or not isinstance(content.get('metrics'), dict):
        raise ValueError(f'{path} holds no metrics of a test')
    known = {key: content[key] for key in ReportedRun.__dataclass_fields__ if key in content}
    return ReportedRun(**{**known, 'path': str(path.parent), 'metrics': content['metrics']})


def _has_log(folder: Path) -> bool:
    paths = folder.iterdir() if folder.is_dir() else ()
    return any(LOG_FOLDER.fullmatch(path.name) for path in paths)
