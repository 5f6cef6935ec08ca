"""A parameter of the loss chosen on validation data: what tools/sweep.py does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

from mmengine.config import Config

from mmcalib.metric_keys import ECE, QUALITIES, metric_name
from mmcalib.reports.sweep_summary import read_sweep, summarise, value_text, write_sweep
from mmcalib.runs.checkpoint_choice import LAST_WEIGHTS, last_checkpoint
from mmcalib.runs.command_line import parse_options
from mmcalib.runs.config import DATALOADERS, load_config, set_work_dir
from mmcalib.runs.config_checks import check_config, check_learning
from mmcalib.runs.data_checks import check_config_data
from mmcalib.runs.progress import progress_of
from mmcalib.sweep.parallel_trainings import Job, run_jobs
from mmcalib.sweep.sweep_plan import (
    SweepPlan,
    SweepTraining,
    check_selection,
    check_values,
    option_keys,
    shared_settings,
    trainings_of,
)
from mmcalib.work_dir_files import SWEEP, locked

LOG = 'sweep.log'  # in the folder of each training: what its commands print


def run_sweep(plan: SweepPlan) -> tuple[dict, list[str]]:
    """Train all values, choose by the ECE on validation data, test, and write the summary.

    What an earlier call has finished is kept; a training that it left is resumed.

    Returns:
        The summary, as ``sweep.json`` has it, and the names of what failed.

    Raises:
        OSError: If the config, or its data, is not there, or the work dir cannot be written to.
        ValueError: If the loss has no such parameter, no ECE is measured on validation data, the
            work dir holds a sweep of other settings; and for what a training refuses before its
            first step.
        RuntimeError: If the work dir is in use, or no value could be trained and evaluated.
    """
    cfg = load_config(plan.config, parse_options(plan.options))
    keys = option_keys(cfg, plan.parameter)
    check_selection(cfg)
    check_values(cfg, keys, plan.values)
    _check_trainings(plan, cfg)
    settings, trainings = _joined_with_earlier(plan, shared_settings(plan, cfg))

    def summary() -> dict:
        """Write what has been done until now, and return it."""
        results = [(t.name, t.value, t.results('val'), t.results('test')) for t in trainings]
        found = summarise(settings, results)
        write_sweep(plan.work_dir, found)
        return found

    with locked(plan.work_dir) as lock:
        summary()  # before anything is trained, so that a later call can compare its settings
        todo = [each for each in trainings if not each.results('val')]
        failed = _run_all(plan, todo, lambda each: _train(plan, cfg, keys, each), 'val', lock)
        chosen = [row['value'] for row in summary()['rows'] if row['chosen']]
        if not chosen:
            raise RuntimeError(f'no value has an ECE: see the {LOG} of each in {plan.work_dir}')
        if cfg.get('test_dataloader') is not None:
            todo = [t for t in trainings if t.results('val') and not t.results('test')]
            todo = [each for each in todo if plan.test_all or each.value in chosen]
            failed += _run_all(plan, todo, lambda each: _test(plan, keys, each), 'test', lock)
        return summary(), failed


def _check_trainings(plan: SweepPlan, cfg: Config) -> None:
    """Raise what each training would end with before its first step."""
    check_learning(cfg)
    cfg = deepcopy(cfg)
    set_work_dir(cfg, str(plan.work_dir))
    check_config(cfg, DATALOADERS)
    check_config_data(cfg, ('train', 'val', 'test'))


def _joined_with_earlier(plan: SweepPlan, settings: dict) -> tuple[dict, list[SweepTraining]]:
    """Return the settings and trainings of a sweep and of what its work dir has of it already."""
    earlier = read_sweep(plan.work_dir) if (plan.work_dir / SWEEP).is_file() else settings
    for key, value in settings.items():
        if earlier.get(key) != value:
            raise ValueError(
                f'{plan.work_dir} holds a sweep of other settings, with {key.replace("_", " ")} '
                f'{earlier.get(key)!r}, not {value!r}. Give another --work-dir, or remove it'
            )
    done = [r['value'] for r in earlier.get('rows', []) if r['val'] and not r.get('missing')]
    values = list(dict.fromkeys([*done, *plan.values]))
    values.sort(key=lambda value: (isinstance(value, str), value))
    seeds = list(dict.fromkeys([*(earlier.get('seeds') or []), *(plan.seeds or [])]))
    return {**settings, 'seeds': seeds or None}, trainings_of(plan, values, seeds)


def _run_all(
    plan: SweepPlan,
    trainings: Sequence[SweepTraining],
    command: Callable[[SweepTraining], list[str]],
    split: str,
    lock: int | None,
) -> list[str]:
    """Run a command for each training, say how it ended, and name those that failed."""
    if not trainings:
        return []
    for each in trainings:
        each.folder.mkdir(parents=True, exist_ok=True)
    by_name, failed = {each.name: each for each in trainings}, []
    jobs = [Job(name, command(each), each.folder / LOG) for name, each in by_name.items()]
    doing = 'Training' if split == 'val' else 'Testing'
    print(f'{doing} {", ".join(by_name)}', flush=True)
    with progress_of(doing, len(jobs)) as say:

        def done(job: Job, status: int) -> None:
            results = by_name[job.name].results(split)
            if status == 0 and results:
                say(f'{job.name}: {split} {_headline(results["metrics"])}')
            else:
                failed.append(job.name)
                said = job.log.read_text(errors='replace').strip().rpartition('\n')[2]
                say(f'{job.name}: FAILED with status {status}, see {job.log}: {said}')

        run_jobs(jobs, plan.jobs, gpus=plan.gpus or 1, lock=lock, done=done)
    return failed


def _headline(metrics: dict) -> str:
    keys = [key for key in (*QUALITIES, ECE) if key in metrics]
    return ', '.join(f'{metric_name(key)} {metrics[key]:.2f}' for key in keys)


def _train(plan: SweepPlan, cfg: Config, keys: Sequence[str], training: SweepTraining) -> list[str]:
    command = _command(plan, 'train', [plan.config])
    command += ['--work-dir', str(training.folder), '--split', 'val', *plan.train_arguments]
    last = last_checkpoint(training.folder)
    if last is not None:
        command += ['--resume', str(last)]
        print(f'{training.name}: resuming from {last.name}')
    # Two, since mmengine removes the last one before it writes the next.
    hook = cfg.get('default_hooks', {}).get('checkpoint', {})
    keep = ['default_hooks.checkpoint.max_keep_ckpts=2'] if hook.get('max_keep_ckpts') == 1 else []
    return command + _options(plan, keys, training, keep)


def _test(plan: SweepPlan, keys: Sequence[str], training: SweepTraining) -> list[str]:
    arguments = [plan.config, str(_validated_checkpoint(training))]
    command = [*_command(plan, 'test', arguments), '--work-dir', str(training.folder)]
    return command + _options(plan, keys, training)


def _command(plan: SweepPlan, tool: str, arguments: list[str]) -> list[str]:
    if plan.gpus is None:
        return [sys.executable, str(plan.tools / f'{tool}.py'), *arguments, *plan.arguments]
    script = str(plan.tools / f'dist_{tool}.sh')
    return ['bash', script, *arguments, str(plan.gpus), *plan.arguments]


def _options(
    plan: SweepPlan, keys: Sequence[str], training: SweepTraining, more: Sequence[str] = ()
) -> list[str]:
    seed = [] if training.seed is None else [f'randomness.seed={training.seed}']
    values = [f'{key}={value_text(training.value)}' for key in keys]
    return ['--cfg-options', *more, *plan.options, *seed, *values]


def _validated_checkpoint(training: SweepTraining) -> Path | None:
    path = training.results('val')['checkpoint']
    if path == LAST_WEIGHTS:
        return last_checkpoint(training.folder)
    return training.folder / Path(path).name  # the folder may have been moved
