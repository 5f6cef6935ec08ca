"""From the arguments of tools/sweep.py to a parameter of the loss, chosen on validation data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from inspect import isclass
from itertools import product
from pathlib import Path

from mmengine.config import Config
from rich.console import Console
from rich.progress import track

from mmcalib import losses
from mmcalib.checks import UserError, check_integer, suggestion
from mmcalib.cli.arguments import parse_options
from mmcalib.cli.files import find_config
from mmcalib.cli.parser import ToolParser
from mmcalib.datasets.same_data import same_data
from mmcalib.metrics.keys import ECE, QUALITIES, metric_name
from mmcalib.record import Record, differences, loss_label, paths_of, read_json
from mmcalib.runs.checkpoint import newest_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import (
    class_of,
    losses_of,
    main_loss,
    parameters_of,
    training_in,
    type_name,
)
from mmcalib.tasks.sweep.jobs import run_jobs
from mmcalib.tasks.sweep.summary import (
    Value,
    has_results,
    metrics_in,
    sweep_table,
    value_text,
    write_summary,
)
from mmcalib.visualization.style import save_figure
from mmcalib.visualization.sweep import draw_sweep
from mmcalib.work_dir import RESULTS, SWEEP, experiment_name, locked, of_split

LOG = 'sweep.log'  # in the folder of each training: what its commands print
# Of several losses that have a parameter, one of these is taken.
BEST_KNOWN = (losses.MarginLabelSmoothingLoss, losses.SoftmaxFocalLoss, losses.LabelSmoothingLoss)


def run(parser: ToolParser, args: argparse.Namespace, tools: Path) -> None:
    """Run a sweep with the train.py and test.py of a folder, or draw finished ones."""
    with parser.ending_with_errors('Stopped: the same command goes on from here.'):
        if args.plot and args.out:
            summaries = [read_json(Path(folder, SWEEP)) for folder in args.plot]
            losses = [summary['loss'] for summary in summaries]
            names = [
                loss if losses.count(loss) == 1 else f'{loss}, {folder}'
                for loss, folder in zip(losses, args.plot, strict=True)
            ]
            runs = dict(zip(names, summaries, strict=True))
            save_figure(draw_sweep(runs), args.out)
            print(f'Files: {args.out}')
            return
        if args.config is None or not args.param:
            raise UserError('give a config and --param, or --plot and --out')
        summary, folder, failed = sweep(args, tools)
        for kind in ('png', 'pdf'):
            save_figure(draw_sweep({summary['loss']: summary}), folder / f'sweep.{kind}')
    print(sweep_table(summary))
    if failed:
        sys.exit(f'FAILED: {", ".join(failed)}; the same command tries them again')
    print(f'Files: {folder}/sweep.json, .md, .png and .pdf')


def sweep(args: argparse.Namespace, tools: Path) -> tuple[dict, Path, list[str]]:
    """Train all values, choose by the ECE on validation data, test, and write the summary.

    Args:
        args: Of tools/sweep.py.
        tools: The folder with train.py and test.py.

    Returns:
        The summary, as in ``sweep.json``, its folder, and the names of trainings that failed.

    Raises:
        OSError: If the config is not there, or the work dir cannot be written to.
        UserError: If the loss has no such parameter; the work dir is in use, or has trainings that
            differ in more than the parameter; no value could be trained and evaluated.
    """
    check_integer('--jobs', args.jobs)
    name, values = parse_parameter(args.param)
    config = find_config(args.config)
    cfg = load_config(config, parse_options(args.cfg_options))
    given, keys = complete(cfg, name), option_keys(cfg, name)
    folder = Path('work_dirs/sweeps', experiment_name(config), name)
    folder = folder if args.limit is None else folder / f'limit{args.limit}'
    folder = Path(args.work_dir or folder)
    loss = main_loss(cfg)
    for part in (loss, *loss.get('losses', ())):
        part.pop(name, None)
    options = {key: getattr(args, key) for key in ('amp', 'auto_scale_lr', 'gpus', 'limit')}
    settings = {
        'experiment': experiment_name(config),
        'parameter': name,
        'loss': loss_label(loss),
        'validates_on_test_data': same_data(cfg.val_dataloader, cfg.get('test_dataloader')),
        'training': {**training_in(cfg), **options, 'loss': loss},
    }
    with locked(folder):
        if given:
            config = str(folder / Path(config).name)
            cfg.dump(config)
            print(f'The config lacked {", ".join(given)}: the trainings are those of {config}')
        if (folder / SWEEP).is_file():
            remedy = 'remove it: finished trainings are kept'
            before = read_json(folder / SWEEP, remedy).get('training', settings['training'])
            if wrong := next(differences(before, settings['training']), None):
                raise UserError(
                    f'{folder} holds trainings by other settings, {wrong}: give another --work-dir'
                )
        trainings = trainings_in(folder, name, values, args.seeds or [])
        check_alike(trainings, name)
        start = partial(command, args, tools, config, keys)
        failed = run_all(args, folder, trainings, 'val', start)
        check_alike(trainings, name)
        summary = write_summary(folder, settings, trainings)
        chosen = [row['value'] for row in summary['rows'] if row['chosen']]
        if not chosen:
            raise UserError(f'no value has an ECE: see the {LOG} of each in {folder}')
        if cfg.get('test_dataloader') is not None:
            tested = {
                mine: value
                for mine, value in trainings.items()
                if has_results(mine, 'val') and (args.test_all or value in chosen)
            }
            failed += run_all(args, folder, tested, 'test', start)
        return write_summary(folder, settings, trainings), folder, failed


def trainings_in(
    folder: Path, parameter: str, values: Sequence[Value], seeds: Sequence[int]
) -> dict[Path, Value]:
    """Return the value of each training by its work dir; those of earlier calls take part."""
    values, seeds = list(values), list(seeds)
    for path in folder.glob(f'{parameter}=*/**/{of_split(RESULTS, "val")}'):
        value, *seed = path.parent.relative_to(folder).parts
        values.append(value_of(value.partition('=')[2]))
        seeds += [int(each.removeprefix('seed')) for each in seed]
    values = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    below = [f'seed{seed}' for seed in dict.fromkeys(seeds)] or ['']
    return {
        folder / f'{parameter}={value_text(value)}' / seed: value
        for value, seed in product(values, below)
    }


def check_alike(trainings: Sequence[Path], parameter: str) -> None:
    """Raise a UserError if trainings that are finished differ in more than the parameter."""
    first = None
    for mine in trainings:
        if not has_results(mine, 'val'):
            continue
        record = Record.read(mine / of_split(RESULTS, 'val'))
        (member,) = record.model['members']
        facts = {key: member[key] for key in ('loss', 'training')}
        facts['evaluation'] = record.evaluation
        first = first or (mine, facts)
        for wrong in differences(first[1], facts):
            if wrong.split()[0].rpartition('.')[2] != parameter:
                raise UserError(
                    f'trainings differ in more than {parameter}, {first[0]} and {mine}: {wrong}. '
                    'Give another --work-dir, or remove one of them'
                )


def run_all(
    args: argparse.Namespace,
    folder: Path,
    trainings: Mapping[Path, Value],
    split: str,
    start: Callable,
) -> list[str]:
    """Train or test those without results, say how each ended, and name those that failed."""
    failed, doing = [], 'Training' if split == 'val' else 'Testing'
    names = {mine: str(mine.relative_to(folder)) for mine in trainings}
    todo = [mine for mine in trainings if not has_results(mine, split)]
    if todo:
        print(f'{doing} {", ".join(names[mine] for mine in todo)}', flush=True)
    for mine in todo:
        mine.mkdir(parents=True, exist_ok=True)
    jobs = {mine / LOG: start(mine, value_text(trainings[mine]), split) for mine in todo}
    screen = Console(stderr=True, quiet=not jobs)
    with closing(run_jobs(jobs, args.jobs, gpus=args.gpus or 1)) as ended:
        for log, status in track(ended, doing, total=len(jobs), console=screen):
            name = names[log.parent]
            if status or not has_results(log.parent, split):
                said = log.read_text(errors='replace').strip().rpartition('\n')[2]
                print(f'{name}: FAILED with status {status}, see {log}: {said}', flush=True)
                failed.append(name)
                continue
            (metrics,) = metrics_in(log.parent, split)
            shown = [key for key in (*QUALITIES, ECE) if key in metrics]
            text = ', '.join(f'{metric_name(key)} {metrics[key]:.2f}' for key in shown)
            print(f'{name}: {split} {text}', flush=True)
    return failed


def command(
    args: argparse.Namespace,
    tools: Path,
    config: str,
    keys: Sequence[str],
    mine: Path,
    value: str,
    split: str,
) -> list[str]:
    """Return the command that trains and validates, or tests the validated checkpoint."""
    options = [*args.cfg_options, *(f'{key}={value}' for key in keys)]
    if mine.name.startswith('seed'):
        options.append(f'randomness.seed={mine.name.removeprefix("seed")}')
    start = [sys.executable]
    passed = ['--work-dir', str(mine)]
    if args.gpus is not None:
        start += ['-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={args.gpus}']
        passed += ['--launcher', 'pytorch']
    passed += ['--amp'] if args.amp else []
    passed += [] if args.limit is None else ['--limit', str(args.limit)]
    if split == 'val':
        start += [str(tools / 'train.py'), config, '--split', 'val']
        passed += ['--resume'] if newest_checkpoint(mine) else []
        passed += ['--auto-scale-lr'] if args.auto_scale_lr else []
    else:
        (checkpoint,) = paths_of(Record.read(mine / of_split(RESULTS, 'val')).model)
        checkpoint = mine / Path(checkpoint).name  # the folder may have been moved
        start += [str(tools / 'test.py'), config]
        start += [str(checkpoint if checkpoint.is_file() else newest_checkpoint(mine))]
    return [*start, *passed, '--cfg-options', *options]


def parse_parameter(texts: Sequence[str]) -> tuple[str, list[Value]]:
    """Read ``margin=0,2,4``, each value once.

    Raises:
        UserError: If it is not of that form, or not one.
    """
    name, _, listed = texts[0].partition('=')
    values = list(dict.fromkeys(value_of(part.strip()) for part in listed.split(',')))
    if len(texts) > 1 or not name.isidentifier() or '' in values:
        raise UserError(
            'a sweep is over one parameter, --param NAME=VALUE,VALUE,…, such as margin=0,2,4; got '
            f'{" and ".join(texts)}'
        )
    return name, values


def value_of(text: str) -> Value:
    """Return the value of a text, a number if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def option_keys(cfg: Config, parameter: str) -> list[str]:
    """Return the dotted keys of a parameter in the losses of a model that have it.

    Raises:
        UserError: If none has it; the message names what they have.
    """
    known = parameters_by_loss(cfg)
    keys = [f'{key}.{parameter}' for key, names in known.items() if parameter in names]
    if not keys:
        has = '; '.join(f'{key} has {", ".join(names)}' for key, names in known.items())
        near = suggestion(parameter, {name for names in known.values() for name in names})
        raise UserError(
            f'no loss of the model has a parameter {parameter!r}: {has or "no loss"}{near}'
        )
    return keys


def parameters_by_loss(cfg: Config) -> dict[str, list[str]]:
    """Return the parameters of each loss of a model, by its dotted key."""
    scope = cfg.get('default_scope')
    found = losses_of(cfg.get('model')).items()
    return {key: sorted(parameters_of(class_of(loss, scope))) for key, loss in found}


def complete(cfg: Config, parameter: str) -> list[str]:
    """Give a config a loss that has the parameter, and the ECE, and return what it was given.

    A loss in place of a cross-entropy, unless the name of its own parameter was meant.
    """
    given = []
    known = {name for names in parameters_by_loss(cfg).values() for name in names}
    key, loss = next(iter(losses_of(cfg.get('model')).items()), (None, {}))
    plain = loss.get('type') == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
    if plain and parameter not in known and not suggestion(parameter, known):
        kinds = [*BEST_KNOWN, *filter(isclass, vars(losses).values())]
        kinds = [kind.__name__ for kind in kinds if parameter in parameters_of(kind)]
        if kinds:
            kept = {key: loss[key] for key in ('class_weight', 'loss_weight') if key in loss}
            loss.clear()
            loss.update(type=kinds[0], **kept)
            given.append(f'{kinds[0]} for {key}')
    for split in ('val', 'test'):
        key = f'{split}_evaluator'
        own = cfg.get(key) or []
        own = [own] if isinstance(own, Mapping) else own
        measures = any(
            type_name(metric['type']) == 'CalibrationMetric'
            and not metric.get('prefix')
            and 'ECE' in metric.get('metrics', 'ECE')
            for metric in own
        )
        if cfg.get(f'{split}_dataloader') is not None and not measures:
            cfg[key] = [*own, dict(type='CalibrationMetric', metrics=['ECE'])]
            given.append(f'the ECE for {key}')
    return given
