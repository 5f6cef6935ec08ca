"""The trainings of a sweep: where they lie, their records, and the commands that run them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmcalib.cli.sweep import SweepOptions
from mmcalib.commands.sweep.parameter import (
    Parameter,
    Value,
    config_options,
    parse_value,
    value_text,
)
from mmcalib.errors import UserError
from mmcalib.files import RESULTS, file_name_for_split
from mmcalib.members import package_folder
from mmcalib.runs.record import Record, checkpoint_paths, differences
from mmcalib.runs.resume import newest_checkpoint

LOG = 'sweep.log'  # The commands of a training append their output to it, in its work dir.


@dataclass(frozen=True)
class Training:
    """A training of a sweep.

    Attributes:
        folder: Folder of the sweep.
        name: Path of the work dir below it, such as ``margin=6/seed1``.
        value: Value of the parameter.
        seed: Seed of the training, None for the config's own.
        hook: Config of the CheckpointHook of all trainings, which may have an ``out_dir``.
    """

    folder: Path
    name: str
    value: Value
    seed: int | None
    hook: Mapping = field(default_factory=dict, hash=False)

    @property
    def work_dir(self) -> Path:
        """Work dir of the training."""
        return self.folder / self.name

    @property
    def log(self) -> Path:
        """File with the output of its commands."""
        return self.work_dir / LOG

    @property
    def out_dir(self) -> Path | None:
        """Folder that mmengine adds the last part of the work dir to, None for the work dir."""
        if not self.hook.get('out_dir'):
            return None
        return Path(self.hook['out_dir'], self.folder.name, self.name).parent

    def newest_checkpoint(self) -> Path | None:
        """Return the checkpoint that the training goes on from, None if it has to begin."""
        return newest_checkpoint(self.work_dir, {**self.hook, 'out_dir': self.out_dir})

    def record(self, split: str) -> Record | None:
        """Return the record of its test on a split, None before there is one."""
        file = self.work_dir / file_name_for_split(RESULTS, split)
        return Record.read(file) if file.is_file() else None


def plan_trainings(
    folder: Path, parameter: Parameter, seeds: Sequence[int], hook: Mapping
) -> list[Training]:
    """Return a training for each value and seed; those of earlier calls take part."""
    values = set(parameter.values)
    seeds = list(seeds)
    for path in folder.glob(f'{parameter.name}=*/**/{file_name_for_split(RESULTS, "val")}'):
        value_folder, *seed_folders = path.parent.relative_to(folder).parts
        values.add(parse_value(value_folder.partition('=')[2]))
        seeds += [int(seed_folder.removeprefix('seed')) for seed_folder in seed_folders]
    trainings = []
    for value in sorted(values, key=lambda value: (isinstance(value, str), value)):
        name = f'{parameter.name}={value_text(value)}'
        if not seeds:
            trainings.append(Training(folder, name, value, None, hook))
        for seed in dict.fromkeys(seeds):
            trainings.append(Training(folder, f'{name}/seed{seed}', value, seed, hook))
    return trainings


def check_alike(trainings: Sequence[Training], parameter: str) -> None:
    """Raise a UserError if finished trainings differ in more than the parameter.

    The choice among them would be wrong.
    """
    first = None
    for training in trainings:
        record = training.record('val')
        if record is None:
            continue
        (member,) = record.model['members']
        facts = [{'loss': member['loss'], 'training': member['training']}, record.evaluation]
        if first is None:
            first = training
            first_facts = facts
        for difference in differences(first_facts, facts):
            key = difference.split()[0]
            if key.rpartition('.')[2] != parameter.rpartition('.')[2]:
                raise UserError(
                    f'trainings differ in more than {parameter}, {first.work_dir} and '
                    f'{training.work_dir}: {difference}. Give another --work-dir, or remove one of '
                    'them'
                )


def train_command(
    training: Training, config: str, keys: Sequence[str], options: SweepOptions
) -> list[str]:
    """Return the command that trains and validates.

    Args:
        training: Training with its value.
        config: Path of the config.
        keys: Dotted keys of the parameter in the config.
        options: Options of the sweep.
    """
    arguments = [config, '--split', 'val']
    if training.newest_checkpoint():
        arguments.append('--resume')
    if options.auto_scale_lr:
        arguments.append('--auto-scale-lr')
    return _command('train', arguments, training, keys, options)


def test_command(
    training: Training, config: str, keys: Sequence[str], options: SweepOptions
) -> list[str]:
    """Return the command that tests the validated checkpoint, see :func:`train_command`."""
    (path,) = checkpoint_paths(training.record('val').model)
    checkpoint = training.work_dir / Path(path).name  # The folder may have been moved.
    if not checkpoint.is_file():
        checkpoint = path if Path(path).is_file() else training.newest_checkpoint()
    return _command('test', [config, str(checkpoint)], training, keys, options)


def _command(
    name: str,
    arguments: Sequence[str],
    training: Training,
    keys: Sequence[str],
    options: SweepOptions,
) -> list[str]:
    """Return a command line with what trainings and tests of a sweep have in common.

    It starts files: ``python -m`` would look for modules in the current folder first, where a file
    of the user may have the name of one.
    """
    tools = package_folder('mmcalib', 'tools')
    start = [sys.executable]
    common = ['--work-dir', str(training.work_dir)]
    if options.gpus is not None:
        start += [str(tools / 'torchrun.py'), '--standalone', f'--nproc_per_node={options.gpus}']
        common += ['--launcher', 'pytorch']
    if options.amp:
        common.append('--amp')
    if options.limit is not None:
        common += ['--limit', str(options.limit)]
    common += ['--cfg-options', *(options.cfg_options or ()), *config_options(keys, training.value)]
    if training.seed is not None:
        common.append(f'randomness.seed={training.seed}')
    if training.out_dir is not None:
        common.append(f'default_hooks.checkpoint.out_dir={training.out_dir}')
    return [*start, str(tools / f'{name}.py'), *arguments, *common]
