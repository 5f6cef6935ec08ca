"""The command ``sweep``: from its options to a value that is chosen and tested."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config

from mmcalib.cli.shared import parse_options
from mmcalib.cli.sweep import SweepOptions
from mmcalib.commands.sweep.parameter import (
    check_values,
    complete_config,
    option_keys,
    parse_parameter,
)
from mmcalib.commands.sweep.summary import summary_text, write_summary
from mmcalib.commands.sweep.trainings import LOG, Sweep, plan_trainings
from mmcalib.errors import UserError
from mmcalib.files import SWEEP, experiment_name
from mmcalib.members import find_config
from mmcalib.openmmlab.same_data import validates_on_test_images
from mmcalib.options import check_integer
from mmcalib.reports.figures.from_files import read_file
from mmcalib.reports.figures.sweep import draw_sweep
from mmcalib.reports.row_labels import distinct_names
from mmcalib.runs.config import load_config
from mmcalib.runs.facts import describe_training, main_loss, plain
from mmcalib.runs.labels import loss_label
from mmcalib.runs.record import differences, read_json
from mmcalib.runs.work_dir import checkpoint_hook, locked
from mmcalib.visualization.pixels import save_figure


def sweep_parameter(options: SweepOptions) -> int:
    """Train all values, choose one on validation data, and test it; or draw sweeps.

    Returns:
        The exit status: 1 if a training or a test failed.

    Raises:
        OSError: If the config is not there, or the work dir cannot be written to.
        UserError: If the loss has no such parameter; the work dir is in use, or has trainings that
            differ in more than the parameter; no value could be trained and evaluated.
    """
    if options.plot and options.out:
        draw_finished_sweeps(options.plot, options.out)
        return 0
    if options.config is None or not options.param:
        raise UserError('give a config and --param, or --plot and --out')
    check_integer('--jobs', options.jobs)
    parameter = parse_parameter(options.param)
    config = find_config(options.config)
    cfg = load_config(config, parse_options(options.cfg_options or []))
    additions = complete_config(cfg, parameter.name, options.by)
    keys = option_keys(cfg, parameter.name)
    check_values(cfg, keys, parameter.values)
    folder = sweep_folder(options, config, parameter.name)
    settings = sweep_settings(options, config, cfg, parameter.name)
    with locked(folder):
        check_settings(folder, settings['training'])
        if additions:
            config = str(folder / Path(config).name)
            cfg.dump(config)
            print(f'The config lacked {", ".join(additions)}: the trainings are those of {config}')
        trainings = plan_trainings(folder, parameter, options.seeds or [], checkpoint_hook(cfg))
        sweep = Sweep(trainings, parameter.name, keys, config, options)
        sweep.check_alike()
        # A sweep that is killed in its first training must not continue with other settings.
        write_summary(folder, settings, trainings)
        failed = sweep.train()
        sweep.check_alike()
        summary = write_summary(folder, settings, trainings)
        values = [row['value'] for row in summary['rows'] if row['chosen']]
        if not values:
            raise UserError(f'no value has an {options.by}: see the {LOG} of each in {folder}')
        if options.test_all:
            values = [row['value'] for row in summary['rows']]
        if cfg.get('test_dataloader'):
            failed += sweep.test(values)
            summary = write_summary(folder, settings, trainings)
    for suffix in ('png', 'pdf'):
        save_figure(draw_sweep({summary['loss']: summary}), folder / f'sweep.{suffix}')
    print(summary_text(summary))
    if failed:
        print(f'FAILED: {", ".join(failed)}; the same command tries them again', file=sys.stderr)
        return 1
    print(f'Files: {folder}/sweep.json, .md, .png and .pdf')
    return 0


def draw_finished_sweeps(folders: Sequence[str], out: str) -> None:
    """Draw the sweeps in some work dirs, which are told apart by their losses or paths."""
    summaries = [read_file('sweep', folder) for folder in folders]
    losses = [summary['loss'] for summary in summaries]
    names = distinct_names(losses, [{'path': folder} for folder in folders])
    save_figure(draw_sweep(dict(zip(names, summaries, strict=True))), out)
    print(f'Files: {out}')


def sweep_folder(options: SweepOptions, config: str, parameter: str) -> Path:
    """Return the folder of a sweep; a smoke run has one of its own."""
    limit = options.limit
    if limit is not None:
        check_integer('--limit', limit)
    if options.work_dir:
        return Path(options.work_dir)
    folder = Path('work_dirs/sweeps', experiment_name(config), parameter)
    return folder if limit is None else folder / f'limit{limit}'


def sweep_settings(options: SweepOptions, config: str, cfg: Config, parameter: str) -> dict:
    """Return what the trainings of a sweep share, for its ``sweep.json``."""
    loss = main_loss(cfg)
    for part in (loss, *loss.get('losses', ())):
        part.pop(parameter.rpartition('.')[2], None)
    return {
        'experiment': experiment_name(config),
        'parameter': parameter,
        'by': options.by,
        'loss': loss_label(loss),
        'validates_on_test_data': validates_on_test_images(cfg),
        'training': {
            **describe_training(cfg, processes=options.gpus or 1),
            'amp': options.amp,
            'auto_scale_lr': options.auto_scale_lr,
            'gpus': options.gpus,
            'limit': options.limit,
            'loss': loss,
            'randomness': plain(cfg.get('randomness')),
        },
    }


def check_settings(folder: Path, training: Mapping) -> None:
    """Raise a UserError if a folder has a sweep of other settings: its choice would be wrong."""
    if not (folder / SWEEP).is_file():
        return
    earlier = read_json(folder / SWEEP, 'remove it: finished trainings are kept')
    different = list(differences(earlier.get('training'), training))
    if different:
        raise UserError(
            f'{folder} holds trainings by other settings, {"; ".join(different)}: give another '
            '--work-dir, or remove that folder'
        )
