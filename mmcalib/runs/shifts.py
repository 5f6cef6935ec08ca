"""What a model is tested on beside its clean test data: corruptions, stored sets, other data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from mmengine.config import Config, ConfigDict

from mmcalib.argument_checks import check_integer
from mmcalib.corruption_names import CORRUPTIONS, SEVERITIES, corruptions_of
from mmcalib.runs.corruption_place import corrupted, corruption_places
from mmcalib.runs.load_config import limit_samples, load_config, set_loader_defaults
from mmcalib.runs.preflight import check_data
from mmcalib.runs.stored_set import StoredSet
from mmcalib.transforms.corrupt import check_size, corruption_function

CLEAN = 'clean'


@dataclass(frozen=True)
class Shift:
    """One test set: its data and how they are loaded.

    Attributes:
        kind: ``'clean'``, ``'corruption'``, or ``'data'``.
        name: ``'clean'``, the corruption's, or that of the other data set.
        severity: 1 to 5 of a corruption, else 0.
        loader: Config of its dataloader.
    """

    kind: str
    name: str
    severity: int
    loader: Mapping

    @property
    def text(self) -> str:
        """Its name, with the severity of a corruption."""
        return f'{self.name} {self.severity}' if self.severity else self.name


@dataclass(frozen=True)
class ShiftOptions:
    """Which shifts to test.

    Attributes:
        corruptions: Names of corruptions or of sets of them.
        severities: 0 to 5; the clean data, severity 0, are always tested, once.
        seed: Of the corruptions.
        stored: Folder of CIFAR-10-C or ImageNet-C, to read corrupted images from.
        data: Config files of other data sets with the same classes, by name.
    """

    corruptions: Sequence[str] = ('benchmark',)
    severities: Sequence[int] = (0, *SEVERITIES)
    seed: int = 0
    stored: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)


def plan_shifts(cfg: Config, options: ShiftOptions, *, pin_memory: bool = True) -> list[Shift]:
    """Return the clean data of a config and all that it is to be tested on beside, in order.

    Args:
        cfg: Of a test, as :func:`~mmcalib.runs.load_config.load_config` and what follows it left
            it.
        options: Which shifts.
        pin_memory: Of the loaders of other data sets.

    Raises:
        ImportError: If images are to be corrupted, and the extra for it is missing.
        OSError: If data are not there.
        ValueError: If an option is unknown, or the images cannot be corrupted.
    """
    names, severities = _corruptions(options.corruptions), _severities(options.severities)
    shifts = [Shift('clean', CLEAN, 0, cfg.test_dataloader)]
    if names and severities:
        dataset = cfg.test_dataloader.dataset
        inner = dataset.dataset if cfg.get('limit') else dataset
        places = corruption_places(inner, cfg.get('default_scope'))
        if options.stored is None:
            for name in names:
                corruption_function(name)
            for place in places:
                check_size(place.shape, names)
        else:
            stored = StoredSet(inner, places, options.stored, cfg.get('default_scope'))
            stored.check(names[0], severities[0])
        for name in names:
            for severity in severities:
                if options.stored is None:
                    new = corrupted(inner, places, name, severity, seed=options.seed)
                else:
                    new = stored.dataset(name, severity)
                loader = _with_dataset(cfg.test_dataloader, new, cfg.get('limit'))
                shifts.append(Shift('corruption', name, severity, loader))
    for name, path in options.data.items():
        shifts.append(_other_data(name, path, cfg, pin_memory))
    return shifts


def _corruptions(names: Sequence[str]) -> tuple[str, ...]:
    if 'None' in names:  # as mmdetection has it
        if len(names) > 1:
            raise ValueError(f'--corruptions None stands alone, got {" ".join(names)}')
        return ()
    return corruptions_of(names)


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
    if not re.fullmatch(r'[\w.-]+', name) or name in (CLEAN, *CORRUPTIONS):
        raise ValueError(
            f'--data {name}={path}: a name has letters, digits, dots and dashes, and is none of '
            'clean and the corruptions'
        )
    other = load_config(path)
    if other.get('test_dataloader') is None:
        raise ValueError(f'--data {name}={path}: the config has no test_dataloader')
    if cfg.get('limit'):
        limit_samples(other, cfg.limit)
    set_loader_defaults(other, pin_memory)
    check_data(other, ('test_dataloader',))
    return Shift('data', name, 0, other.test_dataloader)
