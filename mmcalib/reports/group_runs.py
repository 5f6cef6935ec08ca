"""Tested runs as the rows of the paper's tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcalib.learning_losses import LEARNS_BY
from mmcalib.metric_keys import ACCURACIES, columns_of
from mmcalib.reports import paper_numbers
from mmcalib.reports.differences_in_words import in_words
from mmcalib.reports.evaluation_in_words import evaluation_text, other_evaluation_text
from mmcalib.reports.loss_labels import SHORT_NAMES, SYMBOLS
from mmcalib.reports.results_reader import ReportedRun

# Of a test set: with them a part of it is tested, which is another evaluation of the same data.
PART_OF_DATA = ('indices',)
# What must be equal in ensembles that are averaged over several runs.
OF_ENSEMBLE = ('views', 'mc_dropout', 'calibration')


@dataclass
class Row:
    """Runs that differ only in their seed, and the paper's figures for them."""

    label: str
    runs: list[ReportedRun]
    paper: dict

    def values(self, column: str) -> list[float]:
        return [run.metrics[column] for run in self.runs if column in run.metrics]


@dataclass
class Table:
    """One data set and network: the losses as rows, and the runs left out as notes."""

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def tables_of(runs: Sequence[ReportedRun], protocol: str | None = None) -> list[Table]:
    """Return a table for each test set and network, by name.

    All runs of a table were evaluated alike: as most of them were, or by `protocol`. The others,
    the unfinished, and second runs of a seed are named in the notes.

    Args:
        runs: Of :func:`~mmcalib.reports.collect_runs.collect_runs`.
        protocol: Of the calibration metric of segmentors, ``'pooled'`` or ``'paper'``; None for
            the commonest.
    """
    groups = _by_data_and_network(runs)
    titles = _titles(groups)
    tables = [_table(title, group, protocol) for title, group in zip(titles, groups, strict=True)]
    return sorted(tables, key=lambda table: table.name)


def _by_data_and_network(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Group runs by their data and network."""
    groups = defaultdict(list)
    for run in runs:
        groups[_key([_test_data(run), run.config.get('network')])].append(run)
    return list(groups.values())


def _test_data(run: ReportedRun) -> dict:
    """Return the keys that identify the test set of a run, whatever part of it was tested."""
    options = {**run.evaluation.get('dataset', {}), **run.evaluation.get('data_options', {})}
    return {k: v for k, v in options.items() if k not in ('samples', *PART_OF_DATA)}


def _name(run: ReportedRun) -> str:
    """Return data and network as our config files name them under every loss."""
    return run.experiment.split('/')[-1].removesuffix('_m0')


def _titles(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """Return the commonest name of each group, and the differences between groups of one name."""
    names = [Counter(map(_name, group)).most_common(1)[0][0] for group in groups]
    known = [name for name in names if names.count(name) > 1]
    titles = list(names)
    for name in dict.fromkeys(known):
        places = [place for place, each in enumerate(names) if each == name]
        firsts = [groups[place][0] for place in places]
        words, _ = in_words(
            [{'data': _test_data(run), 'network': run.config.get('network', {})} for run in firsts]
        )
        for place, each in zip(places, words, strict=True):
            titles[place] = ', '.join([name, *each])
    return titles


def _table(title: str, runs: list[ReportedRun], protocol: str | None) -> Table:
    kept, notes = _kept(runs, protocol)
    evaluation = kept[0].evaluation if kept else None
    names = Counter(map(_name, runs))
    entry = next(filter(None, map(paper_numbers.published_experiment, names)), None)
    network = kept[0].config.get('network') if kept else None
    reason = entry and kept and paper_numbers.why_not_comparable(entry, evaluation, network)
    rows, of_most = _rows(kept, entry if not reason else None)
    before = [f'Evaluation: {evaluation_text(evaluation)}.'] if kept else ['No run is left.']
    if of_most:
        before.append(f'Unless a row says otherwise: {", ".join(of_most)}.')
    if len(names) > 1:
        before.append(f'The same data and network under several names: {", ".join(sorted(names))}.')
    if reason:
        before.append(f'No published value stands beside these: {reason}.')
    if any(row.paper for row in rows):
        before += _unlike_the_paper(entry, rows, evaluation)
    unknown = sorted(r.path for r in kept if r.training.get('finished', True) is None)
    if unknown:
        before.append(f'Unknown whether the training was finished: {", ".join(unknown)}.')
    columns = columns_of(key for row in rows for run in row.runs for key in run.metrics)
    title = f'{title} ({entry["title"]})' if entry else title
    return Table(title, columns, rows, before + notes)


def _kept(runs: Sequence[ReportedRun], protocol: str | None) -> tuple[list[ReportedRun], list[str]]:
    """Return the runs that may stand in one table, and notes that name the others."""
    left_out = defaultdict(list)
    finished = []
    for run in runs:
        if run.training.get('finished') is False:
            left_out['training unfinished'].append(run.path)
        else:
            finished.append(run)
    wanted = [
        run
        for run in finished
        if protocol in (None, run.evaluation.get('protocol')) or _classifies(run)
    ]
    commonest = Counter(_key(run.evaluation) for run in wanted).most_common(1)
    reference = next((r for r in wanted if _key(r.evaluation) == commonest[0][0]), None)
    kept = {}
    for run in sorted(finished, key=lambda run: run.date, reverse=True):
        key = _row_key(run), run.path if run.seed is None else run.seed
        if reference is None or _key(run.evaluation) != commonest[0][0]:
            how = other_evaluation_text(run.evaluation, reference and reference.evaluation)
            left_out[f'evaluated otherwise ({how})'].append(run.path)
        elif key in kept:
            reason = f'{run.label}, seed {run.seed} again, older than {kept[key].path}'
            left_out[reason].append(run.path)
        else:
            kept[key] = run
    # Each once: the scores of unseen classes of one test are several.
    texts = {why: ', '.join(sorted(set(paths))) for why, paths in left_out.items()}
    notes = [f'Left out, {why}: {paths}.' for why, paths in texts.items()]
    return list(kept.values()), notes


def _classifies(run: ReportedRun) -> bool:
    """Return whether a run has one prediction of an image, of which protocols are the same."""
    return any(key.startswith(ACCURACIES) for key in run.metrics)


def _key(part: object) -> str:
    return json.dumps(part, sort_keys=True)


def _row_key(run: ReportedRun) -> str:
    """Return the key that all runs of a row share."""
    model = run.model or {}
    settings = sorted(
        _key([member['settings'], member['calibration']]) for member in model.get('members', ())
    )
    loss = run.experiment if run.loss is None else run.loss
    trained = run.trained and run.trained['digest'], run.training.get('checkpoint')
    ensemble = [model.get(key) for key in OF_ENSEMBLE]
    told = run.losses, run.calibration, run.score, run.file
    return _key([loss, *trained, *told, settings, *ensemble])


def _tested_in_words(run: ReportedRun) -> list[str]:
    """Return the tested checkpoint in words, unless the best, and a normalisation that differs."""
    which = run.training.get('checkpoint', 'best')
    words = [] if which == 'best' else [f'checkpoint: {which or "renamed"}']
    trained = run.config.get('network', {}).get('data_preprocessor')
    if trained is None or run.model is None or run.is_ensemble:
        return words
    tested = run.model['members'][0]['settings']['data_preprocessor']
    both = [{'data_preprocessor': each} for each in (trained, tested)]
    return words + [f'tested with {text}' for text in in_words(both)[0][1]]


def _rows(runs: Sequence[ReportedRun], entry: Mapping | None) -> tuple[list[Row], list[str]]:
    """Return the rows of a table, and the settings that most, but not all, have in common."""
    groups = defaultdict(list)
    for run in runs:
        groups[_row_key(run)].append(run)
    firsts = [group[0] for group in groups.values()]
    words, of_most = _what_differs(firsts)
    labels = [
        ', '.join([run.label, *each, *_tested_in_words(run)])
        for run, each in zip(firsts, words, strict=True)
    ]
    rows = []
    for label, group in zip(labels, groups.values(), strict=True):
        first = group[0]
        if labels.count(label) > 1:  # as where transforms change places
            label += f', config {first.trained["digest"][:6]}'
            if first.model and not first.is_ensemble:
                label += f', model {first.model["members"][0]["settings"]["network"][:6]}'
        known = entry and not first.calibration and not first.is_ensemble
        paper = paper_numbers.published_values(entry, first.loss) if known else None
        rows.append(Row(label, group, paper[1] if paper else {}))
    return sorted(rows, key=_order), of_most


def _what_differs(runs: Sequence[ReportedRun]) -> tuple[list[list[str]], list[str]]:
    """Return the settings in which each training differs from most, and those of most."""
    intervals = Counter(_validates_every(run) for run in runs if not _learns_by(run))
    usual = intervals.most_common(1)[0][0] if intervals else None
    return in_words([_compared(run, usual) for run in runs])


def _compared(run: ReportedRun, usual: int | None) -> dict:
    """Return the settings of a training in which the rows of a table can differ.

    Args:
        run: Of the table.
        usual: After how many epochs the losses of the table validate that do not learn from it.
    """
    others = {
        key: 'as the main loss' if loss == run.loss else loss
        for key, loss in run.config.get('other_losses', {}).items()
    }
    # A loss that learns goes without saying with its hook, but not with options of it, and with a
    # validation after every epoch.
    learns_by = _learns_by(run)
    hooks = [hook for hook in run.config.get('hooks', []) if hook != learns_by]
    changed = {'network': {}, 'other_losses': others, 'hooks': hooks}
    if learns_by is not None and usual is not None and _validates_every(run) == 1:
        changed['length'] = {**run.config['length'], 'val_interval': usual}
    return {**run.config, **changed}


def _learns_by(run: ReportedRun) -> dict | None:
    hook = LEARNS_BY.get((run.loss or {}).get('type'))
    return {'type': hook} if hook else None


def _validates_every(run: ReportedRun) -> int | None:
    """Return the epochs between validations, None if unknown or counted in iterations."""
    length = run.config.get('length') or {}
    return length.get('val_interval') if length.get('by_epoch') else None


def _order(row: Row) -> tuple:
    loss = row.runs[0].loss or {}
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    return place, [_number(loss.get(key)) for key in SYMBOLS], row.label


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0.0


def _unlike_the_paper(entry: Mapping, rows: Sequence[Row], evaluation: Mapping) -> list[str]:
    """Say where runs that stand beside published figures are not quite the paper's."""
    notes = []
    lengths = sorted({row.runs[0].length for row in rows if row.paper})
    if entry['epochs'] and lengths != [f'{entry["epochs"]} epochs']:
        notes.append(f'Trained for {" or ".join(lengths)}; the paper for {entry["epochs"]} epochs.')
    samples = evaluation['dataset']['samples']
    if samples != entry['samples'][0]:
        notes.append(f'Tested on {samples:,} samples; the paper on {entry["samples"][0]:,}.')
    sources = paper_numbers.published()['sources']
    names = {paper_numbers.published_values(entry, r.runs[0].loss)[0] for r in rows if r.paper}
    notes += [
        f'The published figures for {n} come from {sources[n]}.' for n in sorted(names & {*sources})
    ]
    return notes
