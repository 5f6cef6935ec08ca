"""The work of tools/sweep.py: a parameter of the loss is chosen on validation data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from mmengine.config import Config

from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.errors import calibration_error
from mmcalib.metrics.intervals import gap_intervals
from mmcalib.metrics.keys import ECE, INTERVAL, QUALITIES, metric_name
from mmcalib.record import paths_of
from mmcalib.runs.checkpoint_choice import LAST_WEIGHTS, last_checkpoint
from mmcalib.runs.checks import check_run
from mmcalib.runs.command_line import parse_options
from mmcalib.runs.config import load_config, set_work_dir
from mmcalib.runs.config_checks import checkpoint_hook
from mmcalib.runs.progress import progress_of
from mmcalib.runs.runner import build_runner
from mmcalib.tasks.sweep.parallel_trainings import Job, run_jobs
from mmcalib.tasks.sweep.summary import read_sweep, summarise, value_text, write_sweep
from mmcalib.tasks.sweep.sweep_plan import (
    SweepPlan,
    SweepTraining,
    check_values,
    complete,
    option_keys,
    shared_settings,
    trainings_of,
)
from mmcalib.work_dir import STATISTICS, SWEEP, locked, of_split

LOG = 'sweep.log'  # in the folder of each training: what its commands print


def run_sweep(plan: SweepPlan) -> tuple[dict, list[str]]:
    """Train all values, choose by the ECE on validation data, test, and write the summary.

    Trainings that an earlier call has finished are kept, and others that it left are resumed.

    Returns:
        The summary, as in ``sweep.json``, and the names of trainings that failed.

    Raises:
        OSError: If the config, or its data, is not there, or the work dir cannot be written to.
        ValueError: If the loss has no such parameter, the work dir holds a sweep with other
            settings, or trainings would refuse the config.
        RuntimeError: If the work dir is in use, or no value could be trained and evaluated.
    """
    cfg = load_config(plan.config, parse_options(plan.options))
    given = complete(cfg, plan.parameter)
    keys = option_keys(cfg, plan.parameter)
    check_values(cfg, keys, plan.values)
    # Errors that each training would end with before its first step.
    checked = deepcopy(cfg)
    set_work_dir(checked, str(plan.work_dir))
    checked.launcher = 'none'
    check_run(build_runner(checked), ('train', 'val', 'test'))
    settings, trainings = _joined_with_earlier(plan, shared_settings(plan, cfg))

    def summary() -> dict:
        """Write what has been done until now, and return it."""
        results = [
            (t.name, t.value, *(_with_interval(t, split) for split in ('val', 'test')))
            for t in trainings
        ]
        found = summarise(settings, results)
        write_sweep(plan.work_dir, found)
        return found

    with locked(plan.work_dir):
        if given:
            path = plan.work_dir / Path(plan.config).name
            cfg.dump(path)
            plan = replace(plan, config=str(path))
            print(f'The config lacked {", ".join(given)}: the trainings are those of {path}')
        summary()  # before anything is trained, so that a later call can compare its settings
        todo = [each for each in trainings if not each.results('val')]
        failed = _run_all(plan, cfg, keys, todo, 'val')
        chosen = [row['value'] for row in summary()['rows'] if row['chosen']]
        if not chosen:
            raise RuntimeError(f'no value has an ECE: see the {LOG} of each in {plan.work_dir}')
        if cfg.get('test_dataloader') is not None:
            todo = [t for t in trainings if t.results('val') and not t.results('test')]
            todo = [each for each in todo if plan.test_all or each.value in chosen]
            failed += _run_all(plan, cfg, keys, todo, 'test')
        return summary(), failed


def _with_interval(training: SweepTraining, split: str) -> dict | None:
    """Return the results of a training, with the interval of its ECE over images."""
    results = training.results(split)
    path = training.folder / of_split(STATISTICS, split)
    if results is None or f'{ECE}{INTERVAL[0]}' in results['metrics'] or not path.is_file():
        return results
    statistics = CalibrationStatistics.load(path)
    if PROTOCOLS[statistics.protocol].group is None:  # else it is a mean of several
        bounds = gap_intervals(
            {ECE: calibration_error}, statistics.image_bins,
            coverage=0.95, num_bootstrap=1000, seed=0, limits={},
        )[ECE]  # fmt: skip
        named = {f'{ECE}{end}': bound for end, bound in zip(INTERVAL, bounds, strict=True)}
        results['metrics'] |= named
    return results


def _joined_with_earlier(plan: SweepPlan, settings: dict) -> tuple[dict, list[SweepTraining]]:
    """Return settings and trainings of a sweep, with those that its work dir has already."""
    earlier = read_sweep(plan.work_dir) if (plan.work_dir / SWEEP).is_file() else settings
    for key, value in settings.items():
        if earlier.get(key) != value:
            raise ValueError(
                f'{plan.work_dir} holds a sweep with other settings: {key.replace("_", " ")} '
                f'{earlier.get(key)!r}, not {value!r}. Give another --work-dir, or remove it'
            )
    done = [r['value'] for r in earlier.get('rows', []) if r['val'] and not r.get('missing')]
    values = list(dict.fromkeys([*done, *plan.values]))
    values.sort(key=lambda value: (isinstance(value, str), value))
    seeds = list(dict.fromkeys([*(earlier.get('seeds') or []), *(plan.seeds or [])]))
    return {**settings, 'seeds': seeds or None}, trainings_of(plan, values, seeds)


def _run_all(
    plan: SweepPlan,
    cfg: Config,
    keys: Sequence[str],
    trainings: Sequence[SweepTraining],
    split: str,
) -> list[str]:
    """Train or test, say how each ended, and name those that failed."""
    if not trainings:
        return []
    by_name, jobs, failed = {each.name: each for each in trainings}, [], []
    for name, each in by_name.items():
        each.folder.mkdir(parents=True, exist_ok=True)
        jobs.append(Job(name, _command(plan, cfg, keys, each, split), each.folder / LOG))
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

        run_jobs(jobs, plan.jobs, gpus=plan.gpus or 1, done=done)
    return failed


def _headline(metrics: dict) -> str:
    keys = [key for key in (*QUALITIES, ECE) if key in metrics]
    return ', '.join(f'{metric_name(key)} {metrics[key]:.2f}' for key in keys)


def _command(
    plan: SweepPlan, cfg: Config, keys: Sequence[str], training: SweepTraining, split: str
) -> list[str]:
    """Return the command that trains and validates, or tests the validated checkpoint."""
    trains = split == 'val'
    tool, arguments = (
        ('train', [plan.config]) if trains else ('test', [plan.config, _best(training)])
    )
    if plan.gpus is None:
        command = [sys.executable, str(plan.tools / f'{tool}.py'), *arguments]
    else:
        command = ['bash', str(plan.tools / f'dist_{tool}.sh'), *arguments, str(plan.gpus)]
    command += [*plan.arguments, '--work-dir', str(training.folder)]
    options = [*plan.options, *(f'{key}={value_text(training.value)}' for key in keys)]
    if training.seed is not None:
        options.append(f'randomness.seed={training.seed}')
    if trains:
        command += ['--split', 'val', *plan.train_arguments]
        last = last_checkpoint(training.folder)
        if last is not None:
            command += ['--resume', str(last)]
            print(f'{training.name}: resuming from {last.name}')
        if checkpoint_hook(cfg).get('max_keep_ckpts') == 1:
            # Two, since mmengine removes the last one before it writes the next.
            options.insert(0, 'default_hooks.checkpoint.max_keep_ckpts=2')
    return [*command, '--cfg-options', *options]


def _best(training: SweepTraining) -> str:
    """Return the checkpoint that a training was validated with."""
    (path,) = paths_of(training.results('val')['model'])
    if path == LAST_WEIGHTS:
        return str(last_checkpoint(training.folder))
    return str(training.folder / Path(path).name)  # the folder may have been moved
