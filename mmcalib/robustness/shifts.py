"""What a model is tested on beside its clean test data: corruptions, stored sets, other data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log

from mmcalib.argument_checks import check_integer
from mmcalib.corruption_names import CORRUPTIONS, SETS, SEVERITIES, corruptions_of
from mmcalib.distributed import is_first_process
from mmcalib.metric_keys import CLEAN, OVER_SHIFTS
from mmcalib.robustness.corrupted_pipeline import CorruptionPlace, corrupted, corruption_places
from mmcalib.robustness.stored_corruptions import StoredSet
from mmcalib.runs.config import limit_samples, load_config, set_loader_defaults
from mmcalib.runs.config_checks import check_data
from mmcalib.transforms.corrupt import LEAST_SIZE, check_size, corruption_function, too_wide

# What tables have of other names than those of corruptions.
OF_TABLES = (*OVER_SHIFTS, 'overall', *SETS)
RESERVED = (*OF_TABLES, *CORRUPTIONS)
# Of the preprocessors of mmpretrain, mmseg and mmengine: those that exchange red and blue.
CHANNEL_FLIPS = ('to_rgb', 'bgr_to_rgb', 'rgb_to_bgr')


@dataclass(frozen=True)
class Shift:
    """One test set: its data and how they are loaded.

    Attributes:
        kind: ``'clean'``, ``'corruption'``, or ``'data'``.
        name: ``'clean'``, the corruption's, or that of the other data set.
        severity: 1 to 5 of a corruption, else 0.
        loader: Config of its dataloader.
        stored: The folder that corrupted images are read from, None if they are corrupted here.
        seed: Of a corruption that is made here.
    """

    kind: str
    name: str
    severity: int
    loader: Mapping
    stored: str | None = None
    seed: int | None = None

    @property
    def text(self) -> str:
        """Its name, with the severity of a corruption."""
        return f'{self.name} {self.severity}' if self.severity else self.name

    @property
    def made(self) -> dict:
        """By what images are corrupted, for ``robustness.json``: a seed or a stored set."""
        if self.kind != 'corruption':
            return {}
        return {'stored': Path(self.stored).resolve().name} if self.stored else {'seed': self.seed}


@dataclass(frozen=True)
class ShiftOptions:
    """Which shifts to test.

    Attributes:
        corruptions: Names of corruptions or of sets of them.
        severities: 0 to 5; the clean data, severity 0, are always tested, once.
        seed: Of the corruptions.
        stored: Folder of CIFAR-10-C or ImageNet-C, to read corrupted images from.
        data: Config files of other data sets with the same classes, by name.
        before: The transform before which images are corrupted; None to find it.
    """

    corruptions: Sequence[str] = ('benchmark',)
    severities: Sequence[int] = (0, *SEVERITIES)
    seed: int = 0
    stored: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    before: str | None = None


def plan_shifts(cfg: Config, options: ShiftOptions, *, pin_memory: bool = True) -> list[Shift]:
    """Return the clean data of a config and all that it is to be tested on beside, in order.

    Args:
        cfg: Of a test, as :func:`~mmcalib.runs.config.load_config` and what follows it left
            it.
        options: Which shifts.
        pin_memory: Of the loaders of other data sets.

    Raises:
        ImportError: If images are to be corrupted, and the extra for it is missing.
        OSError: If data are not there.
        ValueError: If an option is unknown, or the images cannot be corrupted.
    """
    names, severities = _corruptions(options.corruptions), _severities(options.severities)
    stored_in, seed = options.stored, check_integer('--seed', options.seed, least=0)
    shifts = [Shift('clean', CLEAN, 0, cfg.test_dataloader)]
    if names and severities:
        dataset = cfg.test_dataloader.dataset
        inner = dataset.dataset if cfg.get('limit') else dataset
        places = corruption_places(inner, cfg.get('default_scope'), options.before)
        if stored_in is None:
            names = _that_fit(names, options.corruptions, places)
            for name in names:
                corruption_function(name)
        else:
            stored = StoredSet(inner, places, stored_in, cfg.get('default_scope'))
            stored.check(names, severities)
        for name in names:
            for severity in severities:
                if stored_in is None:
                    new = corrupted(inner, places, name, severity, seed=seed)
                else:
                    new = stored.dataset(name, severity)
                loader = _with_dataset(cfg.test_dataloader, new, cfg.get('limit'))
                made = dict(seed=seed) if stored_in is None else dict(stored=stored_in)
                shifts.append(Shift('corruption', name, severity, loader, **made))
    for name, path in options.data.items():
        shifts.append(_other_data(name, path, cfg, pin_memory))
    return shifts


def _corruptions(names: Sequence[str]) -> tuple[str, ...]:
    if 'None' in names:  # as mmdetection has it
        if len(names) > 1:
            raise ValueError(f'--corruptions None stands alone, got {" ".join(names)}')
        return ()
    return corruptions_of(names)


def _that_fit(
    names: Sequence[str], asked: Sequence[str], places: Sequence[CorruptionPlace]
) -> list[str]:
    """Return corruptions without those of sets for which images are too small, which it says."""
    smallest = min((place.shape for place in places), key=min)
    wide = [name for name in too_wide(smallest, names) if name not in asked]
    fit = [name for name in names if name not in wide]
    check_size(smallest, fit or names)
    if wide and is_first_process():
        print_log(
            f'Left out, since images of {smallest[0]}×{smallest[1]} pixels are below the '
            f'{LEAST_SIZE}×{LEAST_SIZE} that they need: {", ".join(wide)}.'
        )
    return fit


def _severities(severities: Sequence[int]) -> list[int]:
    for severity in severities:
        if check_integer('--severities', severity, least=0) > SEVERITIES[-1]:
            raise ValueError(f'--severities are from 0 to {SEVERITIES[-1]}, got {severity}')
    return sorted(set(severities) - {0})


def _with_dataset(loader: Mapping, dataset: Mapping, limit: int | None) -> ConfigDict:
    loader = deepcopy(loader)
    if limit:
        dataset = dict(type='EvenSubset', dataset=dataset, samples=limit)
    loader['dataset'] = ConfigDict(dataset)
    return loader


def _other_data(name: str, path: str, cfg: Config, pin_memory: bool) -> Shift:
    if not re.fullmatch(r'[\w.-]+', name) or name in RESERVED or name.endswith('_map'):
        raise ValueError(
            f'--data {name}={path}: a name has letters, digits, dots and dashes, does not end in '
            f'_map, and is no corruption and none of {", ".join(OF_TABLES)}'
        )
    other = load_config(path)
    if other.get('test_dataloader') is None:
        raise ValueError(f'--data {name}={path}: the config has no test_dataloader')
    if differs := _preprocessing_differs(cfg, other):
        raise ValueError(
            f'--data {name}={path}: {differs}, and the model would see these images otherwise than '
            'those it was trained on. Its own data_preprocessor is what they go through: have the '
            'data fit it, such as by channel_order of CIFARC, and give that config the same one'
        )
    if cfg.get('limit'):
        limit_samples(other, cfg.limit)
    set_loader_defaults(other, pin_memory)
    check_data(other, ('test_dataloader',))
    return Shift('data', name, 0, other.test_dataloader)


def _preprocessing_differs(cfg: Config, other: Config) -> str | None:
    """Return in what another config prepares images otherwise, None if it says nothing else."""
    ours, theirs = _preprocessor(cfg), _preprocessor(other)
    if not theirs:
        return None
    flips = [any(each.get(key) for key in CHANNEL_FLIPS) for each in (ours, theirs)]
    if flips[0] != flips[1]:
        does = ['exchanges' if flip else 'does not exchange' for flip in flips]
        return f'its data_preprocessor {does[1]} red and blue, and that of the model {does[0]} them'
    for key in ('mean', 'std'):
        values = [each.get(key) for each in (ours, theirs)]
        if not np.array_equal(*(np.ravel(np.array(value, float)) for value in values), True):
            return f'its data_preprocessor has {key}={values[1]}, and that of the model {values[0]}'
    return None


def _preprocessor(cfg: Config) -> Mapping:
    model = cfg.get('model') or {}
    found = model.get('module', model).get('data_preprocessor')
    return found or cfg.get('data_preprocessor') or {}
