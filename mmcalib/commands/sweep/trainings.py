"""The trainings of a sweep: where they lie, their records, and how they run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from mmcalib.cli.sweep import SweepOptions
from mmcalib.commands.sweep.jobs import run_jobs
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
from mmcalib.reports.metric_columns import headline_text
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

    def validated_checkpoint(self) -> str:
        """Return the path of the checkpoint that was tested on validation data."""
        (path,) = checkpoint_paths(self.record('val').model)
        checkpoint = self.work_dir / Path(path).name  # The folder may have been moved.
        if not checkpoint.is_file():
            checkpoint = path if Path(path).is_file() else self.newest_checkpoint()
        return str(checkpoint)

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


@dataclass(frozen=True)
class Sweep:
    """The trainings of all values, and what their commands have in common.

    Attributes:
        trainings: A training for each value and seed.
        parameter: Name of the parameter.
        keys: Its dotted keys in the config.
        config: Path of the config.
        options: Options of the command.
    """

    trainings: Sequence[Training]
    parameter: str
    keys: Sequence[str]
    config: str
    options: SweepOptions

    def check_alike(self) -> None:
        """Raise a UserError if finished trainings differ in more than the parameter.

        The choice among them would be wrong.
        """
        first = None
        for training in self.trainings:
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
                if key.rpartition('.')[2] != self.parameter.rpartition('.')[2]:
                    raise UserError(
                        f'trainings differ in more than {self.parameter}, {first.work_dir} and '
                        f'{training.work_dir}: {difference}. Give another --work-dir, or remove '
                        'one of them'
                    )

    def train(self) -> list[str]:
        """Train and validate what has no record yet; return the names of trainings that failed."""
        trainings = [training for training in self.trainings if training.record('val') is None]
        return self._run(trainings, 'val')

    def test(self, values: Collection[Value]) -> list[str]:
        """Test some values that are validated; return the names of trainings that failed."""
        trainings = []
        for training in self.trainings:
            is_validated = training.record('val') is not None
            if training.value in values and is_validated and training.record('test') is None:
                trainings.append(training)
        return self._run(trainings, 'test')

    def _run(self, trainings: Sequence[Training], split: str) -> list[str]:
        """Train or test, print how each ended, and return the names of those that failed.

        Args:
            trainings: Trainings that have to run.
            split: ``'val'`` to train and to test on validation data, or ``'test'``.
        """
        if not trainings:
            return []
        activity = 'Training' if split == 'val' else 'Testing'
        print(f'{activity} {", ".join(training.name for training in trainings)}', flush=True)
        jobs = {training.log: self.command(training, split) for training in trainings}
        trainings_by_log = {training.log: training for training in trainings}
        failed = []
        gpus = self.options.gpus or 1
        with closing(run_jobs(jobs, self.options.jobs, gpus=gpus)) as ended_jobs:
            for log, status in track(
                ended_jobs, activity, total=len(jobs), console=Console(stderr=True)
            ):
                training = trainings_by_log[log]
                record = training.record(split)
                if status == 0 and record is not None:
                    line = f'{split} {headline_text(record.metrics)}'
                else:
                    last_line = log.read_text(errors='replace').strip().rpartition('\n')[2]
                    line = f'FAILED with status {status}, see {log}: {last_line}'
                    failed.append(training.name)
                print(f'{training.name}: {line}', flush=True)
        return failed

    def command(self, training: Training, split: str) -> list[str]:
        """Return the command that trains and validates, or that tests the validated checkpoint.

        It starts files: ``python -m`` would look for modules in the current folder first, where a
        file of the user may have the name of one.
        """
        options = self.options
        tools = package_folder('mmcalib', 'tools')
        command = [sys.executable]
        if options.gpus is not None:
            command += [str(tools / 'torchrun.py'), '--standalone']
            command.append(f'--nproc_per_node={options.gpus}')
        if split == 'val':
            command += [str(tools / 'train.py'), self.config, '--split', 'val']
            if training.newest_checkpoint():
                command.append('--resume')
            if options.auto_scale_lr:
                command.append('--auto-scale-lr')
        else:
            command += [str(tools / 'test.py'), self.config, training.validated_checkpoint()]
        command += ['--work-dir', str(training.work_dir)]
        if options.gpus is not None:
            command += ['--launcher', 'pytorch']
        if options.amp:
            command.append('--amp')
        if options.limit is not None:
            command += ['--limit', str(options.limit)]
        command += ['--cfg-options', *(options.cfg_options or ())]
        command += config_options(self.keys, training.value)
        if training.seed is not None:
            command.append(f'randomness.seed={training.seed}')
        if training.out_dir is not None:
            command.append(f'default_hooks.checkpoint.out_dir={training.out_dir}')
        return command
