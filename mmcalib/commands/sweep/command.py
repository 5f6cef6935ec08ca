"""From the arguments of tools/sweep.py to a parameter of the loss, chosen on validation data."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from inspect import isclass
from itertools import product
from pathlib import Path

from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS, MODELS
from rich.console import Console
from rich.progress import track
from torch import Tensor

from mmcalib import losses
from mmcalib.cli.arguments import parse_options
from mmcalib.cli.files import find_config
from mmcalib.cli.parser import ToolParser
from mmcalib.commands.sweep.jobs import run_jobs
from mmcalib.commands.sweep.noise import may_be_best
from mmcalib.errors import UserError, suggestion
from mmcalib.files import (
    RESULTS,
    STATISTICS,
    SWEEP,
    experiment_name,
    file_name_for_split,
    whole_file,
)
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.intervals import interval_values
from mmcalib.metrics.names import ECE, INTERVAL, PREFIX, metric_heading
from mmcalib.openmmlab.same_data import same_data
from mmcalib.options import check_integer
from mmcalib.reports import figures
from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.metric_columns import headline_text, metric_columns
from mmcalib.reports.row_labels import distinct_names
from mmcalib.runs.checks import building, keys_of
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import constructor_options, find_class, plain, type_name
from mmcalib.runs.labels import loss_label
from mmcalib.runs.record import Record, checkpoint_paths, differences, read_json
from mmcalib.runs.resume import newest_checkpoint
from mmcalib.runs.training import describe_training, find_losses, main_loss
from mmcalib.runs.work_dir import locked
from mmcalib.tables import TextTable, escape_markdown
from mmcalib.visualization import draw_sweep
from mmcalib.visualization.pixels import save_figure

Value = float | str
TABLE = 'sweep.md'
LOG = 'sweep.log'  # in the folder of each training: what its commands print
SPLITS = ('val', 'test')
# Of several losses that have a parameter, one of these is taken.
BEST_KNOWN = (losses.MarginLabelSmoothingLoss, losses.SoftmaxFocalLoss, losses.LabelSmoothingLoss)


def run(parser: ToolParser, args: argparse.Namespace, tools: Path) -> None:
    """Run a sweep with the train.py and test.py of a folder, or draw finished ones."""
    with parser.ending_with_errors('Stopped: the same command goes on from here.'):
        if args.plot and args.out:
            summaries = [figures.read_file('sweep', folder) for folder in args.plot]
            labels = [summary['loss'] for summary in summaries]
            names = distinct_names(labels, [{'path': folder} for folder in args.plot])
            save_figure(draw_sweep(dict(zip(names, summaries, strict=True))), args.out)
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
    check_values(cfg, keys, values)
    limited = '' if args.limit is None else f'limit{check_integer("--limit", args.limit)}'
    folder = Path('work_dirs/sweeps', experiment_name(config), name, limited)
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
        'training': {
            **describe_training(cfg),
            **options,
            'loss': loss,
            'randomness': plain(cfg.get('randomness')),
        },
    }
    with locked(folder):
        check_settings(folder, settings['training'])
        if given:
            config = str(folder / Path(config).name)
            cfg.dump(config)
            print(f'The config lacked {", ".join(given)}: the trainings are those of {config}')
        trainings = trainings_in(folder, name, values, args.seeds or [])
        # Before the first training, so that one that is killed is not resumed by other settings.
        write_summary(folder, settings, trainings)
        failed = []
        for split in SPLITS:
            check_alike(trainings, name)
            todo = [mine for mine in trainings if not read(mine, split)]
            if split == 'test':
                summary = write_summary(folder, settings, trainings)
                chosen = [row['value'] for row in summary['rows'] if row['chosen']]
                if not chosen:
                    raise UserError(f'no value has an ECE: see the {LOG} of each in {folder}')
                wanted = [m for m in todo if args.test_all or trainings[m] in chosen]
                todo = [m for m in wanted if read(m, 'val') and cfg.get('test_dataloader')]
            jobs = {
                mine / LOG: command(args, tools, config, keys, mine, trainings[mine], split)
                for mine in todo
            }
            failed += run_all(jobs, folder, split, args)
        return write_summary(folder, settings, trainings), folder, failed


def check_settings(folder: Path, training: Mapping) -> None:
    """Raise a UserError if a sweep of other settings has been started in a folder."""
    if not (folder / SWEEP).is_file():
        return
    before = read_json(folder / SWEEP, 'remove it: finished trainings are kept').get('training')
    if before is None:
        return
    before.setdefault('randomness', training['randomness'])  # which 0.3.0 did not write
    if wrong := list(differences(before, training)):
        raise UserError(
            f'{folder} holds trainings by other settings, {"; ".join(wrong)}: give another '
            '--work-dir, or remove that folder'
        )


def trainings_in(
    folder: Path, parameter: str, values: Sequence[Value], seeds: Sequence[int]
) -> dict[Path, Value]:
    """Return the value of each training by its work dir; those of earlier calls take part."""
    values, seeds = list(values), list(seeds)
    for path in folder.glob(f'{parameter}=*/**/{file_name_for_split(RESULTS, "val")}'):
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
    facts = {}
    for mine in trainings:
        if (record := read(mine, 'val')) is None:
            continue
        members = ({k: m[k] for k in ('loss', 'training')} for m in record.model['members'])
        facts[mine] = [*members, record.evaluation]
        first = next(iter(facts))
        for wrong in differences(facts[first], facts[mine]):
            if wrong.split()[0].rpartition('.')[2] != parameter:
                raise UserError(
                    f'trainings differ in more than {parameter}, {first} and {mine}: {wrong}. '
                    'Give another --work-dir, or remove one of them'
                )


def run_all(
    jobs: Mapping[Path, Sequence[str]], folder: Path, split: str, args: argparse.Namespace
) -> list[str]:
    """Train or test, say how each ended, and name those that failed.

    Args:
        jobs: The commands, by their logs in the work dirs of the trainings.
        folder: Of the sweep.
        split: ``'val'`` for trainings, which end with a test on validation data.
        args: Of tools/sweep.py.
    """
    failed, doing = [], 'Training' if split == 'val' else 'Testing'
    names = {log: log.parent.relative_to(folder).as_posix() for log in jobs}
    if jobs:
        print(f'{doing} {", ".join(names.values())}', flush=True)
    screen = Console(stderr=True, quiet=not jobs)
    with closing(run_jobs(jobs, args.jobs, gpus=args.gpus or 1)) as ended:
        for log, status in track(ended, doing, total=len(jobs), console=screen):
            record = read(log.parent, split)
            if status or not record:
                said = log.read_text(errors='replace').strip().rpartition('\n')[2]
                text = f'FAILED with status {status}, see {log}: {said}'
                failed.append(names[log])
            else:
                text = f'{split} {headline_text(record.metrics)}'
            print(f'{names[log]}: {text}', flush=True)
    return failed


def command(
    args: argparse.Namespace,
    tools: Path,
    config: str,
    keys: Sequence[str],
    mine: Path,
    value: Value,
    split: str,
) -> list[str]:
    """Return the command that trains and validates, or tests the validated checkpoint."""
    options = [*args.cfg_options, *options_of(keys, value)]
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
        (checkpoint,) = checkpoint_paths(read(mine, 'val').model)
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


def options_of(keys: Sequence[str], value: Value) -> list[str]:
    """Return the ``--cfg-options`` of a value."""
    return [f'{key}={value_text(value)}' for key in keys]


def check_values(cfg: Config, keys: Sequence[str], values: Sequence[Value]) -> None:
    """Raise a UserError for a value that no training can have, hours before its turn."""
    for value in values:
        changed, options = deepcopy(cfg), options_of(keys, value)
        changed.merge_from_dict(parse_options(options))
        registry = MODELS.switch_scope_and_registry(cfg.get('default_scope'))
        with building(f'leave out {value_text(value)}, {options[0]}: '), registry as models:
            for path, loss in find_losses(changed.model).items():
                if any(key.rpartition('.')[0] == path for key in keys):
                    models.build(loss)


def parameters_by_loss(cfg: Config) -> dict[str, list[str]]:
    """Return the parameters of each loss of a model, by its dotted key."""
    scope = cfg.get('default_scope')
    found = find_losses(cfg.get('model')).items()
    return {key: sorted(constructor_options(find_class(loss, scope))) for key, loss in found}


def complete(cfg: Config, parameter: str) -> list[str]:
    """Give a config a loss that has the parameter, and the ECE, and return what it was given.

    A loss in place of a cross-entropy, unless the name of its own parameter was meant.
    """
    given = []
    known = {name for names in parameters_by_loss(cfg).values() for name in names}
    key, loss = next(iter(find_losses(cfg.get('model')).items()), (None, {}))
    is_softmax = type_name(loss.get('type')) == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
    if is_softmax and parameter not in known and not suggestion(parameter, known):
        kinds = [*BEST_KNOWN, *filter(isclass, vars(losses).values())]
        kinds = [kind.__name__ for kind in kinds if parameter in constructor_options(kind)]
        if kinds:
            kept = {key: loss[key] for key in ('class_weight', 'loss_weight') if key in loss}
            loss.clear()
            loss.update(type=kinds[0], **kept)
            given.append(f'{kinds[0]} for {key}')
    for split in SPLITS:
        key = f'{split}_evaluator'
        own = cfg.get(key) or []
        with building(f'{key}: '), METRICS.switch_scope_and_registry(cfg.get('default_scope')):
            measured = map(keys_of, Evaluator(own).metrics)
        if cfg.get(f'{split}_dataloader') and not any(ECE in (names or ()) for names in measured):
            own = [own] if isinstance(own, Mapping) else own
            cfg[key] = [*own, dict(type='CalibrationMetric', metrics=['ECE'])]
            given.append(f'the ECE for {key}')
    return given


def value_text(value: Value) -> str:
    """Return the name of a value in folders and tables."""
    return repr(value).removesuffix('.0') if isinstance(value, float) else value


def read(mine: Path, split: str) -> Record | None:
    """Return what a training was found to be on a split, None before it is."""
    file = mine / file_name_for_split(RESULTS, split)
    return Record.read(file) if file.is_file() else None


def metrics_in(mine: Path, split: str) -> list[dict]:
    """Return the metrics of a training, with the interval of its ECE over images, if any."""
    if not (record := read(mine, split)):
        return []
    path, metrics = mine / file_name_for_split(STATISTICS, split), record.metrics
    if f'{ECE}{INTERVAL[0]}' not in metrics and path.is_file():
        kept = CalibrationStatistics.load(path)
        if PROTOCOLS[kept.protocol].images_per_unit is None:  # else it is a mean of several
            bins = kept.image_bins
            ends = interval_values(['ECE'], bins, bins.new_zeros(len(bins), 2), coverage=0.95)
            metrics |= {f'{PREFIX}{name}': end for name, end in ends.items()}
    return [metrics]


def write_summary(folder: Path, settings: Mapping, trainings: Mapping[Path, Value]) -> dict:
    """Write the metrics of every value, the one of least ECE on validation data marked.

    Args:
        folder: Of the sweep.
        settings: What all values share.
        trainings: The value of each, by its work dir.
    """
    rows = {}
    for mine, value in trainings.items():
        new = {'value': value, 'val': [], 'test': [], 'missing': [], 'chosen': False}
        row = rows.setdefault(value, new)
        for split in SPLITS:
            row[split] += metrics_in(mine, split)
        if not read(mine, 'val'):
            row['missing'].append(mine.relative_to(folder).as_posix())
    complete = [row for row in rows.values() if math.isfinite(mean_ece(row))]
    noise = None
    if complete:  # while some are missing, it is the best so far
        min(complete, key=mean_ece)['chosen'] = True
        noise = mark_noise(complete, trainings)
    summary = {**settings, 'noise': noise, 'rows': list(rows.values())}
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    for name, text in ((SWEEP, content), (TABLE, sweep_table(summary))):
        with whole_file(folder / name) as path:
            path.write_text(text + '\n', encoding='utf-8')
    return summary


def mark_noise(rows: Sequence[dict], trainings: Mapping[Path, Value]) -> dict:
    """Mark the rows whose ECE on validation data is within the noise of the least one.

    Args:
        rows: Of the values that are complete; each gets ``within_noise``, None if it is unknown.
        trainings: The value of each, by its work dir.

    Returns:
        What the noise is of: the number of ``images``, None if theirs is unknown, and the least
        number of ``seeds``.
    """
    by_value = [[mine for mine in trainings if trainings[mine] == row['value']] for row in rows]
    tables = [[image_bins(mine) for mine in folders] for folders in by_value]
    counts = {None if each is None else len(each) for folders in tables for each in folders}
    images = counts.pop() if len(counts) == 1 else None
    errors = [[metrics[ECE] for metrics in row['val'] if ECE in metrics] for row in rows]
    marks = may_be_best(errors, tables if images else None)
    for row, mark in zip(rows, marks or [None] * len(rows), strict=True):
        row['within_noise'] = mark
    return {'images': images, 'seeds': min(map(len, errors))}


def image_bins(mine: Path) -> Tensor | None:
    """Return the bins of each validation image of a training, None if its ECE is not of these."""
    path = mine / file_name_for_split(STATISTICS, 'val')
    if not path.is_file():
        return None
    kept = CalibrationStatistics.load(path)
    return kept.image_bins if PROTOCOLS[kept.protocol].images_per_unit is None else None


def mean_ece(row: Mapping) -> float:
    """Return the mean over seeds on validation data, NaN while one is missing."""
    values = [metrics[ECE] for metrics in row['val'] if ECE in metrics]
    return statistics.mean(values) if values and not row['missing'] else math.nan


def sweep_table(summary: Mapping) -> str:
    """Return a sweep in Markdown, with a line for every value."""
    rows, headings = summary['rows'], [summary['parameter']]
    table = [[value_text(row['value'])] for row in rows]
    for split in SPLITS:
        for key in metric_columns(key for row in rows for each in row[split] for key in each):
            headings.append(f'{split} {metric_heading(key)}')
            for row, cells in zip(rows, table, strict=True):
                values = [each[key] for each in row[split] if key in each]
                cells.append(mean_and_deviation(values, key))
    for row, cells in zip(rows, table, strict=True):
        cells.append(_remark(row, rows))
    title = escape_markdown(f'{summary["loss"]}, {summary["experiment"]}')
    lines = [title, '', TextTable([*headings, ''], table).write('markdown')]
    if noise := noise_in_words(summary):
        lines += ['', noise]
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def noise_in_words(summary: Mapping) -> str:
    """Return which values the validation does not tell from the chosen one, for several values."""
    noise, rows = summary.get('noise'), summary['rows']
    measured = [row for row in rows if 'within_noise' in row]
    if not noise or len(measured) < 2:
        return ''
    more_seeds = '' if noise['seeds'] > 2 else ': average over seeds, such as --seeds 0 1 2'
    if any(row['within_noise'] is None for row in measured):
        return f'How much of the differences in ECE is noise is not known{more_seeds}.'
    evidence = []
    if noise['images']:
        evidence.append(f'{noise["images"]:,} validation images')
    if noise['seeds'] > 1:
        evidence.append(f'{noise["seeds"]} seeds')
    near = [row for row in measured if row['within_noise'] and not row['chosen']]
    names = ', '.join(value_text(row['value']) for row in near) or 'none'
    text = f'Within noise of the chosen ECE (95 %, {" and ".join(evidence)}): {names}.'
    if noise['seeds'] == 1:
        text += ' Another seed may change an ECE by more, which one training does not show'
        text += f'{more_seeds}.'
    return text


def _remark(row: Mapping, rows: list[Mapping]) -> str:
    if row['chosen']:
        ties = [value_text(each['value']) for each in rows if mean_ece(each) == mean_ece(row)]
        return f'chosen, the first of a tie with {", ".join(ties[1:])}' if ties[1:] else 'chosen'
    if row['missing']:
        return f'unfinished: {", ".join(row["missing"])}'
    if math.isnan(mean_ece(row)):
        return 'no finite ECE, so not to be chosen'
    remarks = []
    if row.get('within_noise'):
        remarks.append('within noise of the chosen')
    if row['test']:
        remarks.append('test not used for selection')
    return '; '.join(remarks)
