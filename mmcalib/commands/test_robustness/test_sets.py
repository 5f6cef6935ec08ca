"""The test sets under shift: clean data, corruptions of them, and other data."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from mmcalib.commands.test_robustness.corruption_places import Place, corrupted, places_in, stored
from mmcalib.errors import UserError
from mmcalib.names import CORRUPTION_SETS, CORRUPTIONS, SEVERITIES, select_corruptions
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

# Names in tables, beside those of corruptions.
RESERVED = (*SHIFT_COLUMNS, 'overall', *CORRUPTION_SETS)


@dataclass(frozen=True)
class Shift:
    """One test set: ``kind`` is clean, corruption or data, ``source`` its seed or stored set."""

    kind: str
    name: str
    loader: Mapping
    severity: int = 0
    source: Mapping = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Name of the folder of its test; data may be called ``fog_3``."""
        return f'{"data_" * (self.kind == "data")}{self.text.replace(" ", "_")}'

    @property
    def text(self) -> str:
        return f'{self.name} {self.severity}' if self.severity else self.name

    @property
    def described(self) -> dict:
        """What the record of its test says of it."""
        return dict(kind=self.kind, name=self.name, severity=self.severity, **self.source)


def plan_shifts(cfg: Config, args: argparse.Namespace) -> list[Shift]:
    """Return all test sets that the arguments ask for, the clean data first.

    Raises:
        UserError: If an option is unknown, or the images cannot be corrupted.
    """
    names = () if args.corruptions == ['None'] else select_corruptions(args.corruptions)
    for severity in args.severities:
        if check_integer('--severities', severity, least=0) > SEVERITIES[-1]:
            raise UserError(f'--severities are from 0 to {SEVERITIES[-1]}, got {severity}')
    severities = sorted(set(args.severities) - {0})
    shifts = [Shift('clean', CLEAN, cfg.test_dataloader)]
    if names and severities:
        dataset, scope = cfg.test_dataloader.dataset, cfg.get('default_scope')
        places = places_in(dataset, scope, args.corrupt_before)
        if args.stored:
            source = {'stored': Path(args.stored).resolve().name}
        else:
            source, names = {'seed': args.seed}, _that_fit(names, args.corruptions, places)
        pairs = [(name, severity) for name in names for severity in severities]
        if args.stored:
            made = stored(dataset, places, scope, args.stored, pairs)
        else:
            made = (corrupted(dataset, places, *pair, args.seed) for pair in pairs)
        for (name, severity), new in zip(pairs, made, strict=True):
            loader = deepcopy(cfg.test_dataloader)
            loader['dataset'] = new
            shifts.append(Shift('corruption', name, loader, severity, source))
    return shifts + [_other_data(*each, cfg, args) for each in args.data.items()]


def set_loader(cfg: Config, args: argparse.Namespace) -> None:
    """Have the test data of a config, one set of several, read as the arguments ask for."""
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    if args.workers is not None:
        cfg.test_dataloader.num_workers = args.workers
    cfg.test_dataloader.persistent_workers = False  # each test has a loader of its own
    set_loader_defaults(cfg)


def _that_fit(names: Sequence[str], asked: Sequence[str], places: Sequence[Place]) -> list[str]:
    """Return corruptions without those from sets that need larger images, and log these."""
    smallest = min((place.shape for place in places), key=min)
    wide = [name for name in corruptions_too_large(smallest, names) if name not in asked]
    fit = [name for name in names if name not in wide]
    check_size(smallest, fit or names)
    if wide and is_main_process():
        print_log(
            f'Left out, because they require images of {LEAST_SIZE}×{LEAST_SIZE} pixels and these '
            f'have {smallest[0]}×{smallest[1]}: {", ".join(wide)}.'
        )
    for name in fit:
        corruption_function(name)
    return fit


def _other_data(name: str, path: str, cfg: Config, args: argparse.Namespace) -> Shift:
    """Return the test data of another config, under a name that is no row of a table."""
    said = f'--data {name}={path}'
    if not re.fullmatch(r'[\w.-]+', name) or name in (*RESERVED, *CORRUPTIONS):
        taken = f'is no corruption and none of {", ".join(RESERVED)}'
        raise UserError(f'{said}: a name has letters, digits, dots and dashes, and {taken}')
    other = load_config(path)
    if other.get('test_dataloader') is None:
        raise UserError(f'{said}: the config has no test_dataloader')
    models = (model_config(each) if each.get('model') else each for each in (other, cfg))
    theirs, ours = (each.get('data_preprocessor') or {} for each in models)
    for key in NORMALISATION if theirs else ():
        if theirs.get(key) != ours.get(key):
            raise UserError(
                f'{said}: its data_preprocessor has {key}={theirs.get(key)}, that of the model '
                f'{ours.get(key)}, which its images go through: adapt the data'
            )
    set_loader(other, args)
    return Shift('data', name, other.test_dataloader)
