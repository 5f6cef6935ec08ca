"""The test sets under shift: clean data, corruptions of them, and other data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from mmcalib.choices import CORRUPTION_SETS, CORRUPTIONS, SEVERITIES, select_corruptions
from mmcalib.cli.robustness import RobustnessOptions
from mmcalib.commands.robustness.corrupted_sets import (
    Place,
    find_places,
    stored_datasets,
    with_corruption,
)
from mmcalib.errors import UserError
from mmcalib.openmmlab.transforms.corrupt import (
    LEAST_SIZE,
    check_size,
    corruption_function,
    corruptions_too_large,
)
from mmcalib.options import check_integer
from mmcalib.reports.metric_columns import CLEAN, SHIFT_COLUMNS
from mmcalib.runs.config import load_config
from mmcalib.runs.model import NORMALISATION, model_config
from mmcalib.runs.run_config import limit_samples, set_loader_defaults

# Tables have these names, and those of corruptions, so other data cannot have them.
TABLE_NAMES = (*SHIFT_COLUMNS, 'overall', *CORRUPTION_SETS)


@dataclass(frozen=True)
class ShiftedSet:
    """A data set that models are tested on.

    Attributes:
        kind: ``'clean'``, ``'corruption'`` or ``'data'``.
        name: Name in tables, such as that of the corruption.
        loader: Config of the data loader.
        severity: Severity of the corruption, 0 without one.
        source: ``seed`` of the corruption, or name of the ``stored`` set; empty without one.
    """

    kind: str
    name: str
    loader: Mapping
    severity: int = 0
    source: Mapping = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Name with the severity, such as ``fog 3``."""
        return f'{self.name} {self.severity}' if self.severity else self.name

    @property
    def folder_name(self) -> str:
        """Name of the folder of its test; other data may be called ``fog_3``."""
        name = self.text.replace(' ', '_')
        return f'data_{name}' if self.kind == 'data' else name

    @property
    def description(self) -> dict:
        """Kind, name, severity and source, for the record of its test."""
        return dict(kind=self.kind, name=self.name, severity=self.severity, **self.source)


def plan_test_sets(cfg: Config, options: RobustnessOptions) -> list[ShiftedSet]:
    """Return all test sets that the options ask for, the clean data first.

    Raises:
        UserError: If an option is unknown, or the images cannot be corrupted.
    """
    test_sets = [ShiftedSet('clean', CLEAN, cfg.test_dataloader), *corruption_sets(cfg, options)]
    for name, path in (options.data or {}).items():
        test_sets.append(other_data_set(name, path, cfg, options))
    return test_sets


def corruption_sets(cfg: Config, options: RobustnessOptions) -> list[ShiftedSet]:
    """Return the test sets of corruptions, made of the clean data or stored."""
    corruptions = ()
    if list(options.corruptions) != ['None']:
        corruptions = select_corruptions(options.corruptions)
    for severity in options.severities:
        if check_integer('--severities', severity, least=0) > SEVERITIES[-1]:
            raise UserError(f'--severities are from 0 to {SEVERITIES[-1]}, got {severity}')
    severities = sorted(set(options.severities) - {0})
    if not corruptions or not severities:
        return []
    clean = cfg.test_dataloader.dataset
    scope = cfg.get('default_scope')
    places = find_places(clean, scope, options.corrupt_before)
    if not options.stored:
        corruptions = fitting_corruptions(corruptions, options.corruptions, places)
    pairs = [(name, severity) for name in corruptions for severity in severities]
    if options.stored:
        source = {'stored': Path(options.stored).resolve().name}
        datasets = stored_datasets(clean, places, scope, options.stored, pairs)
    else:
        source = {'seed': options.seed}
        datasets = [
            with_corruption(clean, places, name, severity, options.seed) for name, severity in pairs
        ]
    test_sets = []
    for (name, severity), dataset in zip(pairs, datasets, strict=True):
        loader = deepcopy(cfg.test_dataloader)
        loader['dataset'] = dataset
        test_sets.append(ShiftedSet('corruption', name, loader, severity, source))
    return test_sets


def fitting_corruptions(
    corruptions: Sequence[str], requested: Sequence[str], places: Sequence[Place]
) -> list[str]:
    """Return the corruptions that images of this size can have.

    Those of a set that require larger images are left out with a line in the log; those that were
    requested by their own names are refused.
    """
    smallest_shape = min((place.shape for place in places), key=min)
    too_large = corruptions_too_large(smallest_shape, corruptions)
    excluded = [name for name in too_large if name not in requested]
    fitting = [name for name in corruptions if name not in excluded]
    check_size(smallest_shape, fitting or corruptions)
    if excluded and is_main_process():
        height, width = smallest_shape
        print_log(
            f'Left out, because they require images of {LEAST_SIZE}×{LEAST_SIZE} pixels and these '
            f'have {height}×{width}: {", ".join(excluded)}.'
        )
    for name in fitting:
        corruption_function(name)  # It raises an error if its package is missing.
    return fitting


def other_data_set(name: str, path: str, cfg: Config, options: RobustnessOptions) -> ShiftedSet:
    """Return the test data of another config, under a name that is no row of a table."""
    argument = f'--data {name}={path}'
    if not re.fullmatch(r'[\w.-]+', name) or name in (*TABLE_NAMES, *CORRUPTIONS):
        raise UserError(
            f'{argument}: a name has letters, digits, dots and dashes, and is no corruption and '
            f'none of {", ".join(TABLE_NAMES)}'
        )
    other = load_config(path)
    if other.get('test_dataloader') is None:
        raise UserError(f'{argument}: the config has no test_dataloader')
    check_same_normalisation(argument, other, cfg)
    set_test_loader(other, options)
    return ShiftedSet('data', name, other.test_dataloader)


def check_same_normalisation(argument: str, other: Config, cfg: Config) -> None:
    """Refuse data that another data preprocessor is for: the model's would give wrong numbers."""
    other_preprocessor = data_preprocessor(other)
    if not other_preprocessor:
        return
    model_preprocessor = data_preprocessor(cfg)
    for key in NORMALISATION:
        if other_preprocessor.get(key) != model_preprocessor.get(key):
            raise UserError(
                f'{argument}: its data_preprocessor has {key}={other_preprocessor.get(key)}, that '
                f'of the model {model_preprocessor.get(key)}, which its images go through: adapt '
                'the data'
            )


def data_preprocessor(cfg: Config) -> Mapping:
    """Return the data preprocessor in a config, which may have no model."""
    owner = model_config(cfg) if cfg.get('model') else cfg
    return owner.get('data_preprocessor') or {}


def set_test_loader(cfg: Config, options: RobustnessOptions) -> None:
    """Set how the test data of a config, one of several test sets, are read."""
    limit_samples(cfg, options.limit)
    if options.workers is not None:
        cfg.test_dataloader.num_workers = options.workers
    cfg.test_dataloader.persistent_workers = False  # Each test has a loader of its own.
    set_loader_defaults(cfg)
