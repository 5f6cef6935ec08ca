"""A parameter of the loss chosen on validation data: what tools/sweep.py does."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS

from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.loss_labels import loss_label
from mmcalib.run_files import RESULTS, SWEEP, VALIDATION_RESULTS, experiment_name, locked
from mmcalib.runs.checkpoints import LAST_WEIGHTS, last_checkpoint
from mmcalib.runs.command_line import parse_options
from mmcalib.runs.config import DATALOADERS, load_config
from mmcalib.runs.loss_config import loss_configs, loss_parameters, main_loss
from mmcalib.runs.parallel_commands import Job, run_jobs
from mmcalib.runs.preflight import calibration_configs, check_data, check_metrics
from mmcalib.visualization.sweep_figure import draw_sweeps

LOG = 'sweep.log'  # in the folder of each run: what its commands print
ECE = 'calibration/ECE'
QUALITIES = ('accuracy/top1', 'mIoU')
UNUSED = 'not used for selection'
Value = float | str


@dataclass
class Sweep:
    """What to train, and how.

    Attributes:
        config: The config file.
        parameter: Constructor parameter of the loss.
        values: What to set it to.
        tools: The folder of train.py and test.py.
        work_dir: Where everything goes.
        seeds: Seeds to average over, each in a folder of its own; None for the config's.
        options: ``KEY=VALUE`` for the config.
        arguments: Further arguments of train.py and test.py.
        train_arguments: Further arguments of train.py.
        gpus: Processes of each training, by dist_train.sh; None for a single one without it.
        jobs: Trainings at a time.
        test_all: Whether to test every value.
    """

    config: str
    parameter: str
    values: list[Value]
    tools: Path
    work_dir: Path
    seeds: list[int] | None = None
    options: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    train_arguments: list[str] = field(default_factory=list)
    gpus: int | None = None
    jobs: int = 1
    test_all: bool = False


@dataclass
class Training:
    """One training."""

    value: Value
    seed: int | None
    folder: Path

    @property
    def name(self) -> str:
        seed = '' if self.seed is None else f'/{self.folder.name}'
        return f'{(self.folder.parent if seed else self.folder).name}{seed}'

    def results(self, split: str) -> dict | None:
        """Return what the run left of a split, None if it has not come to that."""
        path = self.folder / (VALIDATION_RESULTS if split == 'val' else RESULTS)
        try:
            return json.loads(path.read_text(encoding='utf-8'))
        except (FileNotFoundError, ValueError):  # none, or cut off while it was written
            return None


def parse_parameter(text: str) -> tuple[str, list[Value]]:
    """Read ``margin=0,2,4``.

    Raises:
        ValueError: If it is not of that form, or names a value twice.
    """
    name, _, listed = text.partition('=')
    values = [_value(part.strip()) for part in listed.split(',')]
    if not name.isidentifier() or '' in values:
        raise ValueError(f'--param takes NAME=VALUE,VALUE,…, such as margin=0,2,4; got {text!r}')
    if len(set(values)) < len(values):
        raise ValueError(f'--param names a value twice: {text!r}')
    return name, values


def _value(text: str) -> Value:
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise ValueError(f'--param takes finite numbers, got {text!r}')
    return number


def show(value: Value) -> str:
    """Return a value as folders and tables name it."""
    return f'{value:g}' if isinstance(value, float) else value


def default_work_dir(config: str, parameter: str) -> Path:
    """Return ``work_dirs/sweeps/<loss>/<experiment>/<parameter>``."""
    return Path('work_dirs/sweeps', experiment_name(config), parameter)


def option_keys(cfg: Config, parameter: str) -> list[str]:
    """Return the dotted keys of a parameter in the losses of a model that have it.

    Raises:
        ValueError: If none has it; the message names what they have.
    """
    keys, known = [], {}
    for key, loss in loss_configs(cfg.get('model')):
        names = loss_parameters(loss, cfg.get('default_scope'))
        known[f'{key} ({loss["type"]})'] = sorted(names)
        if parameter in names:
            keys.append(f'{key}.{parameter}')
    if not keys:
        has = '; '.join(f'{loss} has {", ".join(names)}' for loss, names in known.items())
        raise ValueError(f'no loss of the model has a parameter {parameter!r}: {has or "no loss"}')
    return keys


def check(cfg: Config) -> None:
    """Raise a ValueError if a config cannot be chosen by the ECE of its validation data."""
    for metric, names in calibration_configs(cfg.get('val_evaluator')):
        if 'ECE' in names and not metric.get('prefix'):
            return
    raise ValueError(
        "a sweep chooses by the validation ECE: add dict(type='ECE') to val_evaluator, without a "
        'prefix'
    )


def check_values(cfg: Config, keys: Sequence[str], values: Sequence[Value]) -> None:
    """Raise a ValueError for a value that a loss refuses, before others are trained."""
    for key in keys:
        path, _, parameter = key.rpartition('.')
        loss = dict(loss_configs(cfg.model))[path]
        for value in values:
            with MODELS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
                try:
                    registry.build({**loss, parameter: value})
                except (TypeError, ValueError) as error:
                    raise ValueError(f'--param {parameter}={show(value)}: {error}') from error


def run_sweep(sweep: Sweep) -> tuple[dict, list[str]]:
    """Train all values, choose by the ECE on validation data, test, and write the summary.

    What an earlier call has finished is kept; a training that it left is resumed.

    Returns:
        The summary, as ``sweep.json`` has it, and the names of what failed.

    Raises:
        FileNotFoundError: If the config, or its data, is not there.
        ValueError: If the loss has no such parameter, no ECE is measured on validation data, or
            the work dir holds a sweep of other settings.
        RuntimeError: If the work dir is in use, or no value could be trained and evaluated.
    """
    cfg = load_config(sweep.config, parse_options(sweep.options))
    keys = option_keys(cfg, sweep.parameter)
    check(cfg)
    check_values(cfg, keys, sweep.values)
    check_metrics(cfg)
    check_data(cfg, DATALOADERS)
    identity = _identity(sweep, cfg, keys)
    earlier = load(sweep.work_dir) if (sweep.work_dir / SWEEP).is_file() else identity
    for key, value in identity.items():
        if earlier.get(key) != value:
            raise ValueError(
                f'{sweep.work_dir} holds a sweep of other settings, with {key.replace("_", " ")} '
                f'{earlier.get(key)!r}, not {value!r}. Give another --work-dir, or remove it'
            )
    done = [row['value'] for row in earlier.get('rows', []) if row['val'] and not row['missing']]
    values = list(dict.fromkeys([*done, *sweep.values]))
    values.sort(key=lambda value: (isinstance(value, str), value))
    seeds = list(dict.fromkeys([*(earlier.get('seeds') or []), *(sweep.seeds or [])]))
    identity['seeds'] = seeds or None
    runs = _runs(sweep, values, seeds)
    sweep.work_dir.mkdir(parents=True, exist_ok=True)
    with locked(sweep.work_dir) as lock:
        # Before anything is trained, so that a later call can compare its settings.
        _write(sweep, summarise(identity, runs))
        todo = [run for run in runs if run.results('val') is None]
        failed = _go(sweep, todo, lambda run: _training(sweep, cfg, keys, run), 'val', lock)
        summary = summarise(identity, runs)
        if not any(row['chosen'] for row in summary['rows']):
            raise RuntimeError(f'no value has an ECE: see the {LOG} of each in {sweep.work_dir}')
        chosen = [row['value'] for row in summary['rows'] if row['chosen']]
        _write(sweep, summary)
        if cfg.get('test_dataloader') is not None:
            todo = [
                run
                for run in runs
                if run.results('val')
                and not run.results('test')
                and (sweep.test_all or run.value in chosen)
            ]
            failed += _go(sweep, todo, lambda run: _test(sweep, keys, run), 'test', lock)
        summary = summarise(identity, runs)
        _write(sweep, summary)
    return summary, failed


def _identity(sweep: Sweep, cfg: Config, keys: Sequence[str]) -> dict:
    """Return the settings that all values of a sweep must share."""
    base = json.dumps(cfg.to_dict(), sort_keys=True, default=str)
    loss = {key: value for key, value in main_loss(cfg).items() if key != sweep.parameter}
    same = cfg.get('test_dataloader') and cfg.val_dataloader.dataset == cfg.test_dataloader.dataset
    return {
        'experiment': experiment_name(sweep.config),
        'parameter': sweep.parameter,
        'loss': loss_label(loss),
        'options': sweep.options,
        'arguments': [*sweep.arguments, *sweep.train_arguments],
        'config_digest': hashlib.sha256(base.encode()).hexdigest()[:16],
        'validates_on_test_data': bool(same),
    }


def _runs(sweep: Sweep, values: Sequence[Value], seeds: Sequence[int]) -> list[Training]:
    runs = []
    for value in values:
        folder = sweep.work_dir / f'{sweep.parameter}={show(value)}'
        for seed in seeds or [None]:
            runs.append(Training(value, seed, folder if seed is None else folder / f'seed{seed}'))
    return runs


def _go(
    sweep: Sweep,
    runs: Sequence[Training],
    command: Callable[[Training], list[str]],
    split: str,
    lock: int | None,
) -> list[str]:
    """Run a command for each training, say how it ended, and name those that failed."""
    by_name, jobs, failed = {run.name: run for run in runs}, [], []
    for run in runs:
        run.folder.mkdir(parents=True, exist_ok=True)
        try:
            jobs.append(Job(run.name, command(run), run.folder / LOG))
        except FileNotFoundError as error:
            failed.append(run.name)
            print(f'{run.name}: FAILED, {error}', flush=True)

    def done(job: Job, status: int) -> None:
        results = by_name[job.name].results(split)
        if status == 0 and results is not None:
            print(f'{job.name}: {split} {_line(results["metrics"])}', flush=True)
        else:
            failed.append(job.name)
            print(f'{job.name}: FAILED with status {status}, see {job.log}', flush=True)

    if jobs:
        doing = 'Training' if split == 'val' else 'Testing'
        print(f'{doing} {", ".join(job.name for job in jobs)}', flush=True)
    run_jobs(jobs, sweep.jobs, gpus=sweep.gpus or 1, lock=lock, done=done)
    return failed


def _line(metrics: dict) -> str:
    keys = (*QUALITIES, ECE)
    return ', '.join(f'{key.split("/")[-1]} {metrics[key]:.2f}' for key in keys if key in metrics)


def _training(sweep: Sweep, cfg: Config, keys: Sequence[str], run: Training) -> list[str]:
    command = _command(sweep, 'train', [sweep.config])
    command += ['--work-dir', str(run.folder), '--split', 'val', *sweep.train_arguments]
    last = last_checkpoint(run.folder)
    if last is not None:
        command += ['--resume', str(last)]
        print(f'{run.name}: resuming from {last.name}')
    # Two, since mmengine removes the last one before it writes the next.
    hook = cfg.get('default_hooks', {}).get('checkpoint', {})
    keep = ['default_hooks.checkpoint.max_keep_ckpts=2'] if hook.get('max_keep_ckpts') == 1 else []
    return command + _options(sweep, keys, run, keep)


def _test(sweep: Sweep, keys: Sequence[str], run: Training) -> list[str]:
    checkpoint = validated_checkpoint(run)
    arguments = [sweep.config, str(checkpoint)]
    command = [*_command(sweep, 'test', arguments), '--work-dir', str(run.folder)]
    return command + _options(sweep, keys, run)


def _command(sweep: Sweep, tool: str, arguments: list[str]) -> list[str]:
    if sweep.gpus is None:
        return [sys.executable, str(sweep.tools / f'{tool}.py'), *arguments, *sweep.arguments]
    script = str(sweep.tools / f'dist_{tool}.sh')
    return ['bash', script, *arguments, str(sweep.gpus), *sweep.arguments]


def _options(
    sweep: Sweep, keys: Sequence[str], run: Training, more: Sequence[str] = ()
) -> list[str]:
    seed = [] if run.seed is None else [f'randomness.seed={run.seed}']
    values = [f'{key}={show(run.value)}' for key in keys]
    return ['--cfg-options', *more, *sweep.options, *seed, *values]


def validated_checkpoint(run: Training) -> Path:
    """Return the checkpoint that a run was validated with.

    Raises:
        FileNotFoundError: If it is gone.
    """
    path = run.results('val')['checkpoint']
    # The folder may have been moved.
    kept = run.folder / Path(path).name
    found = last_checkpoint(run.folder) if path == LAST_WEIGHTS else kept
    if found is None or not found.is_file():
        raise FileNotFoundError(f'{run.folder}: the checkpoint that was validated, {path}, is gone')
    return found


def summarise(identity: dict, runs: Sequence[Training]) -> dict:
    """Return the metrics of every value and which one has the least ECE on validation data."""
    rows = {}
    for run in runs:
        row = rows.setdefault(run.value, {'value': run.value, 'val': [], 'test': [], 'missing': []})
        for split in ('val', 'test'):
            results = run.results(split)
            if results is not None:
                row[split].append(results['metrics'])
            elif split == 'val':
                row['missing'].append(run.name)
    candidates = [
        (mean(row['val'], ECE), value)
        for value, row in rows.items()
        if not row['missing'] and math.isfinite(mean(row['val'], ECE))
    ]
    # While some are missing, it is the best so far.
    best = min(candidates, key=lambda pair: pair[0])[1] if candidates else None
    for row in rows.values():
        row['chosen'] = best is not None and row['value'] == best
    return {**identity, 'rows': list(rows.values())}


def mean(metrics: Sequence[dict], key: str) -> float:
    """Return the mean of a metric over seeds, NaN of none."""
    values = [each[key] for each in metrics if key in each]
    return statistics.mean(values) if values else math.nan


def load(folder: Path) -> dict:
    """Read the summary of a sweep.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = Path(folder) / SWEEP
    if not path.is_file():
        raise FileNotFoundError(f'no {SWEEP} in {folder}: it is no work dir of a sweep')
    return json.loads(path.read_text(encoding='utf-8'))


def draw_to_files(summaries: Sequence[dict], paths: Sequence[str | Path]) -> None:
    """Draw sweeps into files, whose suffixes are their formats.

    Raises:
        ValueError: If there is nothing to draw, or a format is unknown.
    """
    figure = draw_sweeps(summaries)
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)


def _write(sweep: Sweep, summary: dict) -> None:
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    (sweep.work_dir / SWEEP).write_text(content + '\n', encoding='utf-8')
    (sweep.work_dir / 'sweep.md').write_text(markdown(summary) + '\n', encoding='utf-8')


def markdown(summary: dict) -> str:
    """Return a sweep as a table with a line for every value."""
    rows = summary['rows']
    keys = [key for key in (*QUALITIES, ECE) if any(key in m for row in rows for m in row['val'])]
    names = [f'{"top-1" if "top1" in key else key.split("/")[-1]} (%)' for key in keys]
    header = [summary['parameter'], *(f'{s} {name}' for s in ('val', 'test') for name in names), '']
    lines = [
        f'{summary["loss"]}, {summary["experiment"]}',
        '',
        f'| {" | ".join(header)} |',
        '|' + '--:|' * (len(header) - 1) + '---|',
    ]
    for row in rows:
        cells = [
            mean_and_deviation([each[key] for each in row[split] if key in each])
            for split in ('val', 'test')
            for key in keys
        ]
        lines.append(f'| {show(row["value"])} | {" | ".join(cells)} | {_remark(row)} |')
    if summary['validates_on_test_data']:
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def _remark(row: dict) -> str:
    if row['chosen']:
        return '**chosen**'
    if row['missing']:
        return f'unfinished: {", ".join(row["missing"])}'
    return f'test {UNUSED}' if row['test'] else ''
