"""The test sets beside the clean test data: corruptions, stored sets, other data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log

from mmcalib.checks import check_integer
from mmcalib.distributed import is_first_process
from mmcalib.metrics.keys import CLEAN, OVER_SHIFTS
from mmcalib.runs.config import limit_samples, load_config, set_loader_defaults
from mmcalib.tasks.robustness.corrupted_pipeline import (
    CorruptionPlace,
    corrupted,
    corruption_places,
)
from mmcalib.tasks.robustness.stored_corruptions import StoredSet
from mmcalib.transforms.corrupt import LEAST_SIZE, check_size, corruption_function, too_wide
from mmcalib.transforms.corruption_names import CORRUPTIONS, SETS, SEVERITIES, corruptions_of

# Names in tables that are not those of corruptions.
OF_TABLES = (*OVER_SHIFTS, 'overall', *SETS)
RESERVED = (*OF_TABLES, *CORRUPTIONS)
# Options of the toolboxes' preprocessors that exchange red and blue.
CHANNEL_FLIPS = ('to_rgb', 'bgr_to_rgb', 'rgb_to_bgr')


@dataclass(frozen=True)
class Shift:
    """One test set: its data and how they are loaded.

    Attributes:
        kind: ``'clean'``, ``'corruption'``, or ``'data'``.
        name: ``'clean'``, or the name of the corruption or of the other data set.
        severity: 1 to 5 for a corruption, else 0.
        loader: Config of its dataloader.
        stored: The folder that corrupted images are read from, None if they are corrupted here.
        seed: Seed of a corruption that is made here.
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
        """The source of corruptions, for ``robustness.json``: a seed or a stored set."""
        if self.kind != 'corruption':
            return {}
        return {'stored': Path(self.stored).resolve().name} if self.stored else {'seed': self.seed}


def plan_shifts(
    cfg: Config,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int = 0,
    stored: str | None = None,
    data: Mapping[str, str] | None = None,
    before: str | None = None,
) -> list[Shift]:
    """Return all test sets for a config, the clean data first.

    Args:
        cfg: Config of the test.
        corruptions: Names of corruptions or of sets of them, or ``None`` in letters.
        severities: 0 to 5; the clean data, severity 0, are always tested, once.
        seed: Seed of the corruptions.
        stored: Folder of CIFAR-10-C or ImageNet-C, to read corrupted images from.
        data: Config files of other data sets with the same classes, by name.
        before: The transform before which images are corrupted; None to find it.

    Raises:
        ImportError: If images are to be corrupted, and the extra for it is missing.
        OSError: If data are not there.
        ValueError: If an option is unknown, or the images cannot be corrupted.
    """
    if 'None' in corruptions and len(corruptions) > 1:
        raise ValueError(f'--corruptions None must stand alone, got {" ".join(corruptions)}')
    names = () if 'None' in corruptions else corruptions_of(corruptions)  # as mmdetection has it
    for severity in severities:
        if check_integer('--severities', severity, least=0) > SEVERITIES[-1]:
            raise ValueError(f'--severities are from 0 to {SEVERITIES[-1]}, got {severity}')
    severities = sorted(set(severities) - {0})
    check_integer('--seed', seed, least=0)
    shifts = [Shift('clean', CLEAN, 0, cfg.test_dataloader)]
    if names and severities:
        dataset, scope = cfg.test_dataloader.dataset, cfg.get('default_scope')
        inner = dataset.dataset if cfg.get('limit') else dataset
        places = corruption_places(inner, scope, before)
        if stored is None:
            names = _that_fit(names, corruptions, places, cfg.launcher)
            for name in names:
                corruption_function(name)
        else:
            stored_set = StoredSet(inner, places, stored, scope)
            stored_set.check(names, severities)
        for name in names:
            for severity in severities:
                if stored is None:
                    new = corrupted(inner, places, name, severity, seed=seed)
                else:
                    new = stored_set.dataset(name, severity)
                loader = deepcopy(cfg.test_dataloader)
                if cfg.get('limit'):
                    new = dict(type='EvenSubset', dataset=new, samples=cfg.limit)
                loader['dataset'] = ConfigDict(new)
                shifts.append(Shift('corruption', name, severity, loader, stored, seed))
    return shifts + [_other_data(*each, cfg) for each in (data or {}).items()]


def _that_fit(
    names: Sequence[str], asked: Sequence[str], places: Sequence[CorruptionPlace], launcher: str
) -> list[str]:
    """Return corruptions without those from sets that need larger images, and log these."""
    smallest = min((place.shape for place in places), key=min)
    wide = [name for name in too_wide(smallest, names) if name not in asked]
    fit = [name for name in names if name not in wide]
    check_size(smallest, fit or names)
    if wide and is_first_process(launcher):
        print_log(
            f'Left out, because they require images of {LEAST_SIZE}×{LEAST_SIZE} pixels and these '
            f'have {smallest[0]}×{smallest[1]}: {", ".join(wide)}.'
        )
    return fit


def _other_data(name: str, path: str, cfg: Config) -> Shift:
    if not re.fullmatch(r'[\w.-]+', name) or name in RESERVED or name.endswith('_map'):
        raise ValueError(
            f'--data {name}={path}: a name has letters, digits, dots and dashes, does not end in '
            f'_map, and is no corruption and none of {", ".join(OF_TABLES)}'
        )
    other = load_config(path)
    if other.get('test_dataloader') is None:
        raise ValueError(f'--data {name}={path}: the config has no test_dataloader')
    ours, theirs = _in_words(_preprocessor(cfg)), _in_words(_preprocessor(other))
    if _preprocessor(other) and ours != theirs:
        raise ValueError(
            f'--data {name}={path}: its data_preprocessor has {theirs}, but that of the model '
            f'{ours}. The images go through that of the model, so they must suit it: adapt the '
            'data, for CIFARC with channel_order, and give its config the same data_preprocessor'
        )
    if cfg.get('limit'):
        limit_samples(other, cfg.limit)
    set_loader_defaults(other)
    return Shift('data', name, 0, other.test_dataloader)


def _preprocessor(cfg: Config) -> Mapping:
    model = cfg.get('model') or {}
    found = model.get('module', model).get('data_preprocessor')
    return found or cfg.get('data_preprocessor') or {}


def _in_words(preprocessor: Mapping) -> dict:
    """Return the preparation of images, in terms that do not depend on the toolbox."""
    said = {'red and blue exchanged': any(preprocessor.get(key) for key in CHANNEL_FLIPS)}
    for key in ('mean', 'std'):
        value = preprocessor.get(key)
        said[key] = None if value is None else np.ravel(np.array(value, float)).tolist()
    return said
