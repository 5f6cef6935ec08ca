"""The tested runs below some folders, out of the records that their tests leave."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from mmcalib.metrics.keys import CLEAN, OOD
from mmcalib.record import Record, is_ensemble, model_label
from mmcalib.reports.shifted import columns, shifted_tests, shifts_text
from mmcalib.samples import OOD_GROUPS
from mmcalib.work_dir import EARLIER, RESULTS, SWEEP, VALIDATION_RESULTS

LAST_WEIGHTS = 'last weights'  # of a training, in no file
LAST_CHECKPOINT = 'last_checkpoint'  # of a training, as mmengine names it
FILES = (RESULTS, VALIDATION_RESULTS, LAST_CHECKPOINT)
# Of an evaluation, what makes no other table.
NOT_COMPARED = ('limit', 'shift')
# Of an evaluation: what unseen classes are told from the others by.
OF_OOD = ('dataset', 'data_options', 'pipeline', 'inference', 'tta')


@dataclass
class Run:
    """What a tested run has for one table.

    Attributes:
        path: Its folder.
        record: Of its test.
        metrics: The figures for the table, by key.
        evaluation: How they were measured.
        kind: What the table is of, if not of the test data alone, such as ``'under shift'``.
        about: The details of that, such as the corruptions.
        suffix: Tells the run from others of one record.
    """

    path: str
    record: Record
    metrics: dict[str, float]
    evaluation: dict = field(default_factory=dict)
    kind: str = ''
    about: str = ''
    suffix: str = ''

    @property
    def loss(self) -> dict:
        """Type and parameters of the loss, empty if unknown."""
        return self.record.loss or {}

    @property
    def model(self) -> dict:
        """The tested model."""
        return self.record.model

    @property
    def is_ensemble(self) -> bool:
        """Whether it is more than a network that predicts an image once."""
        return is_ensemble(self.model)

    @property
    def config(self) -> dict:
        """What decided about the training, of the first member."""
        return self.model['members'][0]['training']

    @property
    def network(self) -> dict:
        """The trained model without its losses, and what normalises its inputs."""
        return {key: part for key, part in self.config['model'].items() if key != 'train_cfg'}

    @property
    def finished(self) -> bool | None:
        """Whether the trainings came to their ends, None if unknown."""
        found = [member['finished'] for member in self.model['members']]
        return False if False in found else None if None in found else True

    @property
    def length(self) -> dict[str, int]:
        """The planned ``epochs`` or ``iterations``, empty if unknown."""
        train = self.config.get('train_cfg') or {}
        found = {'epochs': train.get('max_epochs'), 'iterations': train.get('max_iters')}
        return next(({name: n} for name, n in found.items() if n), {})

    @property
    def checkpoint(self) -> str | None:
        """Which checkpoints of their trainings were tested: ``'best'``, ``'last'``, ``'epoch 3'``.

        None where a name does not say.
        """
        found = {_role(member['file'], self.length) for member in self.model['members']}
        return None if None in found else ' & '.join(sorted(found))

    @property
    def seed(self) -> int | None:
        """The seed of the training, None if unknown or of several."""
        return self.record.seed

    @property
    def date(self) -> str:
        """When it was tested, empty if unknown."""
        return self.record.date

    @property
    def label(self) -> str:
        """The loss and the steps after the training."""
        return model_label(self.model, experiment=self.record.experiment) + self.suffix


def _role(name: str, length: Mapping[str, int]) -> str | None:
    """Return the role of a checkpoint in its training, by its name."""
    if name.startswith('best'):
        return 'best'
    found = re.fullmatch(r'(epoch|iter)_(\d+)\.pth', name)
    unit = {'epoch': 'epoch', 'iter': 'iteration'}[found[1]] if found else None
    if name == LAST_WEIGHTS or (found and int(found[2]) == length.get(f'{unit}s')):
        return 'last'
    return f'{unit} {int(found[2])}' if found else None


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], dict[str, list[str]]]:
    """Return the tested runs below some folders, and the paths of the others by what they lack.

    Tests on shifted data are runs of their own; so is each score by which unseen classes were told
    from the others, and each evaluation of a sweep on validation data.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    for path in _files_below(folders):
        why = _untested(path)
        try:
            found = [] if why is not None else list(read_runs(path))
        except (OSError, ValueError) as error:
            others[f'unreadable {path.name}'].append(f'{path.parent} ({error})')
            continue
        if any(run.record.limit for run in found):
            others['smoke runs with --limit'].append(str(path.parent))
        elif why:
            others[why].append(str(path.parent))
        else:
            runs += found
    if not runs:
        found = ''.join(f'; {reason}: {", ".join(paths)}' for reason, paths in others.items())
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}{found}')
    return runs, dict(others)


def _files_below(folders: Sequence[str | Path]) -> list[Path]:
    """Return the files that tell of runs, but for what later trainings have set aside."""
    paths = {
        path
        for root in map(Path, folders)
        for path in root.rglob('*')
        if path.name in FILES
        and not any(part.startswith(EARLIER) for part in path.relative_to(root).parts)
    }
    return sorted(paths)


def _untested(path: Path) -> str | None:
    """Return why a file is no test to report, empty if another file tells; None if it is one."""
    folder = path.parent
    if path.name == RESULTS:
        return None
    # A sweep chooses by the results on validation data, and tests the chosen value alone.
    if path.name == VALIDATION_RESULTS and (folder.parent / SWEEP).is_file():
        return None
    if (folder / RESULTS).is_file():
        return ''
    if path.name == VALIDATION_RESULTS:
        return 'not tested, only validated'
    validated = (folder / VALIDATION_RESULTS).is_file()
    return '' if validated else f'unfinished or not tested, no {RESULTS}'


def read_runs(path: Path) -> Iterator[Run]:
    """Yield what a ``results.json`` has for tables; of tests under shift, that of clean data.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file.
    """
    record, folder = Record.read(path), str(path.parent)
    if 'shift' in record.evaluation:  # one of many, which are a run together
        yield from _under_shift(path)
        return
    # A confusion matrix, say, is no figure.
    metrics = {key: value for key, value in record.metrics.items() if isinstance(value, Real)}
    evaluation = {k: part for k, part in record.evaluation.items() if k not in NOT_COMPARED}
    unseen = evaluation.pop('ood', ())
    prefixes = tuple(f'{metric["prefix"]}/' for metric in unseen)
    rest = {key: value for key, value in metrics.items() if not key.startswith(prefixes)}
    if rest or not unseen:
        yield Run(folder, record, rest, evaluation)
    for metric in unseen:
        for score in metric['scores']:
            yield _against_unseen(folder, record, metrics, metric, score)


def _against_unseen(
    folder: str, record: Record, metrics: Mapping, metric: Mapping, score: str
) -> Run:
    """Return what a score tells of unseen classes, whose keys are ``ood/svhn/AUROC`` and so on.

    A mean over a group of one set is that set's, and left out.
    """
    counts = metric['counts']
    sets = {name: n for name, n in counts.items() if name not in ('ID', 'OOD')}
    evaluation = {key: record.evaluation[key] for key in OF_OOD if key in record.evaluation}
    label = '' if metric['ood_index'] is None else f' of label {metric["ood_index"]}'
    about = f'against {counts.get("OOD", 0):,}{label}, {counts["ID"]:,} others'
    if sets:  # behind the samples of the test data
        evaluation['dataset'] = {**evaluation.get('dataset', {}), 'samples': counts['ID']}
        about = 'against ' + ', '.join(f'{n:,} of {name}' for name, n in sets.items())
    start = f'{metric["prefix"]}/{score}/'
    found = {k.removeprefix(start): v for k, v in metrics.items() if k.startswith(start)}
    if len(sets) == 1:
        found = {k: v for k, v in found.items() if k.split('/')[0] not in OOD_GROUPS}
    return Run(
        folder,
        record,
        {OOD + key: value for key, value in found.items()},
        evaluation,
        kind='against unseen classes',
        about=about,
        suffix=f' by {score}',
    )


def _under_shift(path: Path) -> Iterator[Run]:
    """Yield the models of a work dir of tests under shift, at the first of their clean tests."""
    folder = path.parents[2]
    if path != min(folder.glob(f'*/{CLEAN}/{RESULTS}'), default=None):
        return
    for model in shifted_tests(folder):
        if len(model.tests) > 1:
            yield Run(
                str(folder),
                model.clean,
                columns(model),
                {k: part for k, part in model.clean.evaluation.items() if k not in NOT_COMPARED},
                kind='under shift',
                about=f'under {shifts_text(model)}',
                suffix=f', {model.file}' if model.file else '',
            )
