"""What one results.json says, of this version or an older one, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from mmcalib.reports.loss_labels import loss_label
from mmcalib.reports.model_labels import model_label

NOTHING = type(None)
# What the parts of a file are, if they are there. Nothing else in it is read.
TYPES = {
    'experiment': str,
    'seed': (int, NOTHING),
    'date': str,
    'loss': (dict, NOTHING),
    'loss.type': str,
    'calibration': (dict, NOTHING),
    'calibration.methods': list,
    'calibration.forced': list,
    'averaged': (dict, NOTHING),
    'averaged.members': int,
    'averaged.views': int,
    'averaged.mc_dropout': int,
    'averaged.losses': list,
    'averaged.mean_of': (dict, NOTHING),
    'averaged.mean_of.members': list,
    'averaged.calibration': (dict, NOTHING),
    'averaged.calibration.methods': list,
    'averaged.calibration.forced': list,
    'limit': (int, NOTHING),
    'training': dict,
    'training.epochs': int,
    'training.iterations': int,
    'training.finished': (bool, NOTHING),
    'training.checkpoint': (str, NOTHING),
    'settings': (dict, NOTHING),
    'settings.data_preprocessor': dict,
    'settings.network': str,
    'trained': (dict, NOTHING),
    'trained.digest': str,
    'trained.config': dict,
    'trained.config.network': dict,
    'trained.config.other_losses': dict,
    'evaluation': (dict, NOTHING),
    'evaluation.dataset': dict,
    'evaluation.dataset.samples': int,
    'evaluation.data_options': dict,
    'evaluation.protocol': str,
    'evaluation.convention': str,
    'evaluation.num_bins': int,
    'evaluation.tta': bool,
    'evaluation.other_metrics': dict,
    'evaluation.ood': list,
}
REQUIRED = (
    *('experiment', 'metrics', 'loss.type', 'calibration.methods', 'calibration.forced'),
    *('averaged.members', 'averaged.views', 'averaged.mc_dropout', 'averaged.calibration'),
    *('averaged.calibration.methods', 'averaged.calibration.forced'),
    *('trained.digest', 'trained.config', 'evaluation.dataset', 'evaluation.dataset.samples'),
    *('settings.data_preprocessor', 'settings.network', 'averaged.mean_of.members'),
)


@dataclass
class ReportedRun:
    """A tested run; older files lack all but the experiment and the metrics."""

    path: str
    experiment: str
    metrics: dict[str, float]
    seed: int | None = None
    loss: dict | None = None
    trained: dict | None = None
    calibration: dict | None = None
    averaged: dict | None = None
    settings: dict | None = None
    limit: int | None = None
    training: dict = field(default_factory=dict)
    evaluation: dict | None = None
    date: str = ''
    score: str | None = None  # by which unseen classes were told from the others
    file: str | None = None  # of weights, where a folder has several of a loss and seed

    @property
    def config(self) -> dict | None:
        """What was trained beside the loss, None if the file does not say."""
        return self.trained and self.trained['config']

    @property
    def is_shifted(self) -> bool:
        """Whether it stands for tests on shifted data."""
        return 'shift' in (self.evaluation or {}).get('dataset', {})

    @property
    def length(self) -> str:
        """How long the training was to be."""
        for key in ('epochs', 'iterations'):
            if self.training.get(key):
                return f'{self.training[key]} {key}'
        return 'unknown length'

    @property
    def label(self) -> str:
        """The loss, what was done after the training, and what tells it from others of both."""
        name = model_label(self.loss, self.calibration, self.averaged, experiment=self.experiment)
        name = f'{name} by {self.score}' if self.score else name
        return f'{name}, {self.file}' if self.file else name


def read_results(path: Path) -> ReportedRun:
    """Read a results.json.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file; the message says what is wrong with it.
    """
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except RecursionError as error:
        raise ValueError('it is nested too deeply') from error
    check_parts(content)
    fields = ReportedRun.__dataclass_fields__.keys() - {'score', 'file'}
    known = {key: content[key] for key in fields if key in content}
    return ReportedRun(**{**known, 'path': str(path.parent), 'metrics': _numbers(content)})


def check_parts(content: object) -> None:
    """Raise a ValueError for what is no result of a test, or one with parts of other types."""
    if not isinstance(content, dict) or not isinstance(content.get('metrics'), dict):
        raise ValueError('it holds no metrics of a test')
    for name, kind in TYPES.items():
        _check(content, name, kind)
    for name, options in (content.get('evaluation') or {}).get('other_metrics', {}).items():
        if not isinstance(options, dict):
            raise ValueError(f'its options of {name} are {options!r}')
    for metric in (content.get('evaluation') or {}).get('ood', []):
        if not isinstance(metric, dict) or not _is_ood_metric(**metric):
            raise ValueError(f'its metric of unseen classes is {metric!r}')
    for member in ((content.get('averaged') or {}).get('mean_of') or {}).get('members', []):
        if not isinstance(member, dict):
            raise ValueError(f'its member of a mean is {member!r}')
    losses = [content.get('loss') or {'type': ''}]
    losses += (content.get('averaged') or {}).get('losses', [])
    try:
        for loss in losses:
            loss_label(loss)
    except (AttributeError, KeyError, TypeError) as error:  # the terms of a sum can be anything
        raise ValueError(f'its loss is {loss!r}') from error


def _is_ood_metric(
    *, prefix: object = None, scores: object = None, counts: object = None, **others: object
) -> bool:
    return (
        isinstance(prefix, str)
        and isinstance(scores, list)
        and isinstance(counts, dict)
        and {'ID'} < counts.keys()
        and all(isinstance(count, int) for count in counts.values())
    )


def _check(content: Mapping, name: str, kind: type | tuple[type, ...]) -> None:
    """Raise a ValueError if a part is of another type, or lacks what it cannot be without."""
    *path, last = name.split('.')
    node = content
    for key in path:
        node = node.get(key)
        if node is None:
            return
    if last not in node:
        if name in REQUIRED:
            raise ValueError(f'it has no {name}')
        return
    value = node[last]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f'its {name} is {value!r}')


def _numbers(content: Mapping) -> dict[str, float]:
    """Return the metrics that are numbers; a confusion matrix, say, is none."""
    metrics = content['metrics']
    for key, value in metrics.items():
        if isinstance(value, (str, bool, NOTHING)):
            raise ValueError(f'its metric {key} is {value!r}')
    return {key: value for key, value in metrics.items() if isinstance(value, Real)}
