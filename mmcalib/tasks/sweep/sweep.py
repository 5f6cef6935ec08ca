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
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.errors import calibration_error
from mmcalib.metrics.intervals import gap_intervals
from mmcalib.metrics.keys import ECE, INTERVAL, QUALITIES, metric_name
from mmcalib.record import Record, differences, loss_label, paths_of
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
    read_sweep,
    summarise,
    sweep_table,
    value_text,
    write_sweep,
    write_sweep_figure,
)
from mmcalib.work_dir import (
    RESULTS,
    STATISTICS,
    SWEEP,
    check_writable,
    experiment_name,
    locked,
    of_split,
)

LOG = 'sweep.log'  # in the folder of each training: what its commands print
# Of several losses that have a parameter, one of these is taken.
BEST_KNOWN = (losses.MarginLabelSmoothingLoss, losses.SoftmaxFocalLoss, losses.LabelSmoothingLoss)


def run(parser: ToolParser, args: argparse.Namespace, tools: Path) -> None:
    """Run a sweep with the train.py and test.py of a folder, or draw finished ones."""
    with parser.ending_with_errors('Stopped: the same command goes on from here.'):
        if args.plot:
            if not args.out:
                raise UserError('--plot needs --out')
            write_sweep_figure([read_sweep(folder) for folder in args.plot], [args.out])
            print(f'Files: {args.out}')
            return
        if args.config is None or not args.param:
            raise UserError('give a config and --param, or --plot and --out')
        if len(args.param) > 1:
            raise UserError(
                'a sweep is over one parameter: set others with --cfg-options '
                'model.head.loss.alpha=… or a sweep of their own; got ' + ' '.join(args.param)
            )
        summary, folder, failed = sweep(args, tools)
        write_sweep_figure([summary], [folder / f'sweep.{kind}' for kind in ('png', 'pdf')])
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
    name, values = parse_parameter(args.param[0])
    config = find_config(args.config)
    cfg = load_config(config, parse_options(args.cfg_options))
    given, keys = complete(cfg, name), option_keys(cfg, name)
    folder = Path('work_dirs/sweeps', experiment_name(config), name)
    folder = folder if args.limit is None else folder / f'limit{args.limit}'
    folder = Path(args.work_dir or folder)
    check_writable(folder / SWEEP)
    loss = main_loss(cfg)
    for part in (loss, *loss.get('losses', ())):
        part.pop(name, None)
    settings = {
        'experiment': experiment_name(config),
        'parameter': name,
        'loss': loss_label(loss),
        'validates_on_test_data': same_data(cfg.val_dataloader, cfg.get('test_dataloader')),
        'training': {
            **training_in(cfg),
            **{key: getattr(args, key) for key in ('amp', 'auto_scale_lr', 'gpus', 'limit')},
            'loss': loss,
        },
    }
    with locked(folder):
        if given:
            config = str(folder / Path(config).name)
            cfg.dump(config)
            print(f'The config lacked {", ".join(given)}: the trainings are those of {config}')
        if (folder / SWEEP).is_file():
            before = read_sweep(folder).get('training', settings['training'])
            if wrong := next(differences(before, settings['training']), None):
                raise UserError(
                    f'{folder} holds trainings by other settings, {wrong}: give another --work-dir'
                )
        trainings = Trainings(folder, name, values, args.seeds or [])
        run_all = partial(trainings.run_all, args, partial(command, args, tools, config, keys))
        trainings.summary(settings)  # so that those of another sweep are found before the first
        failed = run_all(trainings.left('val'), 'val')
        chosen = [row['value'] for row in trainings.summary(settings)['rows'] if row['chosen']]
        if not chosen:
            raise UserError(f'no value has an ECE: see the {LOG} of each in {folder}')
        if cfg.get('test_dataloader') is not None:
            todo = [mine for mine in trainings.left('test') if has_results(mine, 'val')]
            todo = [mine for mine in todo if args.test_all or trainings.values[mine] in chosen]
            failed += run_all(todo, 'test')
        return trainings.summary(settings), folder, failed


class Trainings:
    """The trainings of a sweep, each in a work dir; what one has finished is not done again.

    Those of earlier calls take part, whatever their values and seeds.

    Attributes:
        values: The value of each, by its work dir.

    Args:
        folder: Of the sweep.
        parameter: Of the loss.
        values: Its values.
        seeds: Each in a work dir of its own; none for the config's.
    """

    def __init__(
        self, folder: Path, parameter: str, values: Sequence[Value], seeds: Sequence[int]
    ) -> None:
        self.folder, self.parameter = folder, parameter
        values, seeds = list(values), list(seeds)
        for path in folder.glob(f'{parameter}=*/**/{of_split(RESULTS, "val")}'):
            value, *seed = path.parent.relative_to(folder).parts
            values.append(value_of(value.partition('=')[2]))
            seeds += [int(each.removeprefix('seed')) for each in seed]
        values = sorted(set(values), key=lambda value: (isinstance(value, str), value))
        below = [f'seed{seed}' for seed in dict.fromkeys(seeds)] or ['']
        self.values = {
            folder / f'{parameter}={value_text(value)}' / seed: value
            for value, seed in product(values, below)
        }

    def name(self, mine: Path) -> str:
        """Return what a training is called."""
        return mine.relative_to(self.folder).as_posix()

    def left(self, split: str) -> list[Path]:
        """Return those that have no results on a split."""
        return [mine for mine in self.values if not has_results(mine, split)]

    def summary(self, settings: Mapping) -> dict:
        """Write what has been done until now, and return it."""
        self.check_alike()
        found = {
            mine: [metrics_in(mine, split) for split in ('val', 'test')] for mine in self.values
        }
        results = [(self.name(mine), self.values[mine], *both) for mine, both in found.items()]
        summary = summarise(settings, results)
        write_sweep(self.folder, summary)
        return summary

    def check_alike(self) -> None:
        """Raise a UserError if trainings that are finished differ in more than the parameter."""
        facts = {}
        for mine in self.values:
            if has_results(mine, 'val'):
                record = Record.read(mine / of_split(RESULTS, 'val'))
                (member,) = record.model['members']
                facts[mine] = {key: member[key] for key in ('loss', 'training')}
                facts[mine]['evaluation'] = record.evaluation
        for mine in facts:
            first = next(iter(facts))
            for wrong in differences(facts[first], facts[mine]):
                if wrong.split()[0].rpartition('.')[2] != self.parameter:
                    raise UserError(
                        f'{self.folder} holds trainings that differ in more than '
                        f'{self.parameter}, {self.name(first)} and {self.name(mine)}: {wrong}. '
                        'Give another --work-dir, or remove one of them'
                    )

    def run_all(
        self, args: argparse.Namespace, start: Callable, todo: Sequence[Path], split: str
    ) -> list[str]:
        """Train or test, say how each ended, and name those that failed."""
        failed, doing = [], 'Training' if split == 'val' else 'Testing'
        for mine in todo:
            mine.mkdir(parents=True, exist_ok=True)
        jobs = {mine / LOG: start(mine, value_text(self.values[mine]), split) for mine in todo}
        if not jobs:
            return []
        print(f'{doing} {", ".join(map(self.name, todo))}', flush=True)
        with closing(run_jobs(jobs, args.jobs, gpus=args.gpus or 1)) as ended:
            for log, status in track(ended, doing, total=len(jobs), console=Console(stderr=True)):
                failed += self.say(log, split, status)
        return failed

    def say(self, log: Path, split: str, status: int) -> list[str]:
        """Say how a command ended, and return the training's name if it failed."""
        mine, name = log.parent, self.name(log.parent)
        if status or not has_results(mine, split):
            said = log.read_text(errors='replace').strip().rpartition('\n')[2]
            print(f'{name}: FAILED with status {status}, see {log}: {said}', flush=True)
            return [name]
        self.check_alike()
        metrics = metrics_in(mine, split)
        shown = [key for key in (*QUALITIES, ECE) if key in metrics]
        text = ', '.join(f'{metric_name(key)} {metrics[key]:.2f}' for key in shown)
        print(f'{name}: {split} {text}', flush=True)
        return []


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


def has_results(mine: Path, split: str) -> bool:
    """Return whether a training has been evaluated on a split."""
    return (mine / of_split(RESULTS, split)).is_file()


def metrics_in(mine: Path, split: str) -> dict | None:
    """Return the metrics of a training, with the interval of its ECE over images, None without."""
    if not has_results(mine, split):
        return None
    metrics = Record.read(mine / of_split(RESULTS, split)).metrics
    path = mine / of_split(STATISTICS, split)
    if f'{ECE}{INTERVAL[0]}' not in metrics and path.is_file():
        statistics = CalibrationStatistics.load(path)
        if PROTOCOLS[statistics.protocol].group is None:  # else it is a mean of several
            bounds = gap_intervals(
                {ECE: calibration_error}, statistics.image_bins,
                coverage=0.95, num_bootstrap=1000, seed=0, limits={},
            )[ECE]  # fmt: skip
            metrics |= {f'{ECE}{end}': bound for end, bound in zip(INTERVAL, bounds, strict=True)}
    return metrics


def parse_parameter(text: str) -> tuple[str, list[Value]]:
    """Read ``margin=0,2,4``, each value once.

    Raises:
        UserError: If it is not of that form.
    """
    name, _, listed = text.partition('=')
    values = list(dict.fromkeys(value_of(part.strip()) for part in listed.split(',')))
    if not name.isidentifier() or '' in values:
        raise UserError(f'--param takes NAME=VALUE,VALUE,…, such as margin=0,2,4; got {text!r}')
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
