"""A test's record: what was tested, on what, and what came out. One file writes and reads it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from numbers import Real
from pathlib import Path
from textwrap import shorten

from mmcalib.errors import UserError
from mmcalib.files import write_text
from mmcalib.metrics.class_rates import ClassRates

# Keys that tell a member from others, wherever its file lies.
IDENTITY_KEYS = ('seed', 'digest', 'network')
# The key of what data hold, in a description of them, and the keys of where they lie, below it.
CONTENT = 'content_digest'
LOCATIONS = ('data_root', 'data_prefix', 'ann_file')
# Shapes that readers of a record rely on: types by key, a list of items of one type, or a pair of
# a type and None. A key with a question mark may be missing, and * stands for all keys; a dict may
# have other keys.
LOSS = {'type': str}
LOSS['losses?'] = [LOSS]  # the terms of a sum
CALIBRATION = {'methods': [str], 'forced': [str], 'split?': str, 'class_prior?': [Real]}
DATA = {f'{CONTENT}?': str}
MEMBER = {
    'checkpoint': str,
    'digest': str,
    'network': {'data_preprocessor?': (dict, None)},
    'seed': (int, None),
    'epoch': object,
    'iteration?': object,
    'loss': (LOSS, None),
    'training': {
        'model': dict,
        'train_cfg?': (dict, None),
        'train_dataloader?': ({'dataset?': (DATA, None)}, None),
        'selection?': ({'on?': (DATA, None)}, None),
    },
    'told_by?': str,
    'finished': (bool, None),
    'stopped_at?': (int, None),
    'file': str,
    'calibration': (CALIBRATION, None),
}
MODEL = {
    'members': [MEMBER],
    'views': ([list], None),
    'mc_dropout': (int, None),
    'calibration': (CALIBRATION, None),
}
UNSEEN = {'prefix': str, 'scores': [str], 'ood_index': (int, None), 'counts': {'ID': int, '*': int}}
EVALUATION = {
    **DATA,
    'dataset?': {'samples?': int},
    'data_options?': dict,
    'limit?': (int, None),
    'shift?': ({'kind': str, 'name': str, 'severity': int}, None),
    'ood?': [UNSEEN],
}
COLUMN = [(Real, None)]
STRATUM = {'ECE': COLUMN, 'accuracy': COLUMN, 'confidence': COLUMN, 'count': [Real]}
RATES = {
    'classes': list,
    'probs': COLUMN,
    'frequencies': COLUMN,
    'standard_errors': COLUMN,
    'are_of_labels': bool,
}
SHAPE = {
    'experiment': str,
    'split': str,
    'model': MODEL,
    'evaluation': EVALUATION,
    'metrics': dict,
    'strata?': {
        'per_class?': {'*': {'classes': list, **STRATUM}},
        'per_distance?': {'*': {'pixels': list, **STRATUM}},
    },
    'rates?': {'*': RATES},
    'fitted_images?': (int, None),
    'date?': str,
    'version?': str,
}


@dataclass
class Record:
    """A test. Its model and its evaluation identify it: with equal ones the figures are the same.

    Attributes:
        experiment: Name of the config.
        split: ``'test'`` or ``'val'``.
        model: Description of what predicts, see :func:`mmcalib.runs.model.describe_model`.
        evaluation: Description of the data and the metrics, see
            :func:`mmcalib.runs.evaluation.describe_evaluation`.
        metrics: Figures by key.
        strata: Figures ``per_class`` and ``per_distance``, where they were measured, see
            :func:`mmcalib.runs.evaluation.stratum_tables`.
        rates: Mean probability and frequency of each class, in percent, by the name of the file of
            statistics, mostly ``calibration``; see :func:`mmcalib.runs.evaluation.rate_tables`.
        fitted_images: Number of the tested images that a scaling of the model was fitted to, on
            which figures are too good; None if it is not known.
        date: Time of the test in UTC, so that the order of dates is that of tests.
        version: Version of mmcalib.
    """

    experiment: str
    split: str
    model: dict
    evaluation: dict
    metrics: dict
    strata: dict = field(default_factory=dict)
    rates: dict = field(default_factory=dict)
    fitted_images: int | None = None
    date: str = ''
    version: str = ''

    @property
    def has_fitted_images(self) -> bool:
        """Whether a scaling of the model was fitted to tested images, by their split if unknown."""
        if self.fitted_images is None:
            return self.split in fitted_splits(self.model)
        return self.fitted_images > 0

    @property
    def loss(self) -> dict | None:
        """Type and options of the loss of all members, None if they differ or have none."""
        return self._common('loss')

    @property
    def seed(self) -> int | None:
        """Seed of all members, None if they differ."""
        return self._common('seed')

    @property
    def calibration(self) -> dict | None:
        """Calibration of all members, None if they differ or have none."""
        return self._common('calibration')

    def _common(self, fact: str) -> object:
        """Return a fact that all members have in common, None if they differ."""
        first, *others = (member[fact] for member in self.model['members'])
        return first if all(other == first for other in others) else None

    @property
    def class_rates(self) -> ClassRates | None:
        """Mean probability and frequency of each class; None if they were not measured."""
        table = self.rates.get('calibration')
        if table is None:
            return None
        columns = {}
        for name in ('probs', 'frequencies', 'standard_errors'):
            columns[name] = [math.nan if value is None else value for value in table[name]]
        return ClassRates(**columns, are_of_labels=table['are_of_labels'])

    @property
    def num_classes(self) -> int | None:
        """Number of classes that a prediction chooses from; None if it is not known."""
        rates = self.class_rates
        if rates is None:
            return None
        return 2 if rates.are_binary else len(rates.probs)

    @property
    def limit(self) -> int | None:
        """Number of samples of a smoke run: of the test, of a training or of a calibration."""
        parts = [self.evaluation, self.model['calibration']]
        for member in self.model['members']:
            parts += [member['training'], member['calibration']]
        for part in parts:
            if part and part.get('limit'):
                return part['limit']
        return None

    def write(self, path: str | Path) -> None:
        """Write a ``results.json``, whole or not at all."""
        write_text(path, json.dumps(asdict(self), indent=2, default=_plain_number) + '\n')

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Read a ``results.json`` or ``results_val.json``.

        Raises:
            FileNotFoundError: If it is not there.
            UserError: If it is no record of a test.
        """
        try:
            content = json.loads(Path(path).read_text(encoding='utf-8'))
            check_shape(content, SHAPE)
            if not content['model']['members']:
                raise TypeError('model.members is empty')
            tables_by_place = {'rates': content.get('rates', {})}
            for name in ('per_class', 'per_distance'):
                tables_by_place[f'strata.{name}'] = content.get('strata', {}).get(name, {})
            for place, tables in tables_by_place.items():
                for table in tables.values():
                    columns = [column for column in table.values() if isinstance(column, list)]
                    if len({len(column) for column in columns}) > 1:
                        raise TypeError(f'{place} has columns of several lengths')
            return cls(**content)
        except (RecursionError, TypeError, ValueError) as error:
            raise UserError(f'{path} is no record of a test ({error}): test again') from error


def _plain_number(value: object) -> object:
    """Return an array or a number of numpy as JSON has it."""
    return value.tolist() if hasattr(value, 'tolist') else str(value)


def read_json(path: str | Path, remedy: str = 'run its tool again') -> dict:
    """Return a file's content.

    Raises:
        UserError: If the file is cut off, with a remedy.
    """
    try:
        return json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise UserError(f'{path} cannot be read ({error!r}): {remedy}') from error


def check_shape(node: object, shape: object, path: str = '') -> None:
    """Raise a TypeError that names the first place where JSON is not of a shape.

    Args:
        node: Value in JSON's types.
        shape: Description of its type, such as :data:`SHAPE`.
        path: Keys that lead to the value.
    """
    if isinstance(shape, tuple):
        shape, _ = shape
        if node is None:
            return
    kind = shape if isinstance(shape, type) else type(shape)
    if not isinstance(node, kind):
        text = shorten(json.dumps(node), 60, placeholder='…')
        raise TypeError(f'{path or "the file"} must be of type {kind.__name__}, got {text}')
    if isinstance(shape, list):
        for index, item in enumerate(node):
            check_shape(item, shape[0], f'{path}.{index}')
    elif isinstance(shape, dict):
        for key, part in shape.items():
            for name in _described_keys(node, key, path):
                check_shape(node[name], part, f'{path}.{name}'.lstrip('.'))


def _described_keys(node: Mapping, key: str, path: str) -> list[str]:
    """Return the keys of a dict that a key of a shape describes, or raise a TypeError."""
    if key == '*':
        return list(node)
    name = key.removesuffix('?')
    if name in node:
        return [name]
    if name == key:
        raise TypeError(f'{path}.{name} is missing'.lstrip('.'))
    return []


def digest(node: object) -> str:
    """Return 16 hexadecimal digits that are equal for equal JSON."""
    text = json.dumps(node, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(
    recorded: object, current: object, path: str = '', ignored: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the differences of two JSON values, such as ``members.0.seed 3 (here: 4)``.

    Where both name the content of their data, it does not matter where these lie. Where one does
    not, as 0.4 did not, the content is not compared.

    Args:
        recorded: A value.
        current: The value that is said to be here.
        path: Keys that lead to both.
        ignored: Keys that are not compared, wherever they are.
    """
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        if CONTENT in recorded and CONTENT in current:
            ignored = LOCATIONS
        elif CONTENT in recorded or CONTENT in current:
            ignored = (*ignored, CONTENT)
        for key in dict.fromkeys([*recorded, *current]):
            if key not in ignored:
                key_path = f'{path}.{key}'.lstrip('.')
                yield from differences(recorded.get(key), current.get(key), key_path, ignored)
        return
    if isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        for index, (old, new) in enumerate(zip(recorded, current, strict=True)):
            yield from differences(old, new, f'{path}.{index}', ignored)
        return
    if recorded != current:
        old_text = shorten(str(recorded), 99, placeholder='…')
        new_text = shorten(str(current), 99, placeholder='…')
        yield f'{path} {old_text} (here: {new_text})'


def identity(model: Mapping) -> dict:
    """Return what two models of the same predictions share.

    It does not depend on where their files lie, nor on the order of their members.
    """
    members = [{key: member[key] for key in IDENTITY_KEYS} for member in model['members']]
    members.sort(key=lambda member: member['digest'])
    return {**model, 'members': members}


def described_data(training: Mapping) -> dict[str, dict]:
    """Return the data sets in the description of a training, by their split."""
    descriptions = {
        'train': (training.get('train_dataloader') or {}).get('dataset'),
        'val': (training.get('selection') or {}).get('on'),
    }
    return {split: data for split, data in descriptions.items() if data}


def checkpoint_paths(model: Mapping) -> list[str]:
    """Return the checkpoints of a record's model."""
    return [member['checkpoint'] for member in model['members']]


def fitted_splits(model: Mapping) -> set[str]:
    """Return the splits that the scalings of a record's model were fitted to."""
    calibrations = [member['calibration'] for member in model['members']]
    calibrations.append(model['calibration'])
    return {calibration.get('split') for calibration in calibrations if calibration}


def view_count(model: Mapping) -> int:
    """Return the number of views of an image that a record's model predicts."""
    return prod(len(alternatives) for alternatives in model['views'])


def is_ensemble(model: Mapping) -> bool:
    """Return whether a record's model is more than one network that predicts an image once."""
    if len(model['members']) > 1 or model['views'] or model['mc_dropout']:
        return True
    return bool(model['calibration'])
