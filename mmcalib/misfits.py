"""The table of what to do about arrays that do not fit, which is asked only after a refusal.

A check states a fact and calls :func:`refuse`. The first row of the table for this check whose
condition holds says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from mmcalib.errors import UserError


class Misfit(NamedTuple):
    """A refusal, of which a condition may ask the arrays and facts.

    Attributes:
        scores: The scores ``(N, K, *)``.
        labels: The labels.
        facts: Numbers and texts, which a remedy may name.
    """

    scores: Tensor
    labels: Tensor
    facts: Mapping[str, Any]

    @property
    def are_binary(self) -> bool:
        """Whether all labels are 0 or 1, in as many axes as the scores have."""
        labels = self.labels
        return labels.ndim == self.scores.ndim > 1 and bool(((labels == 0) | (labels == 1)).all())

    @property
    def fit_one_map(self) -> bool:
        """Whether the labels would fit, if the first axis of the scores had the classes."""
        fits = self.labels.shape == self.scores.shape[1:]
        return fits and len(self.labels) != len(self.scores)

    @property
    def are_one_hot_last(self) -> bool:
        """Whether the last axis of labels of maps is one-hot."""
        shape_of_classes = self.scores.shape[:1] + self.scores.shape[2:]
        has_axis = self.labels.ndim > 2 and self.labels.shape[:-1] == shape_of_classes
        return has_axis and is_one_hot(self.labels, -1)

    @property
    def have_classes_last(self) -> bool:
        """Whether the labels would fit, if the last axis of the scores had the classes."""
        return self.scores.ndim > 2 and self.labels.shape == self.scores.shape[:-1]

    @property
    def start_at_one(self) -> bool:
        """Whether several labels are from 1 to K."""
        is_highest = self.facts['highest'] == self.facts['num_classes']
        return is_highest and self.facts['lowest'] >= 1 and self.facts['num_labels'] > 1


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        key: The name of the row.
        check: The check whose refusals it explains.
        holds: Whether it explains one of them.
        remedy: The remedy, with facts in braces.
        doors: The doors that it is for, such as ``'loader'``; empty for all.
    """

    key: str
    check: str
    holds: Callable[[Misfit], bool]
    remedy: str
    doors: tuple[str, ...] = ()


def explain(
    check: str,
    fact: str,
    *,
    door: str = 'arrays',
    scores: Tensor | None = None,
    labels: Tensor | None = None,
    **facts: Any,
) -> str:
    """Return a fact, and what to do about it.

    Args:
        check: The check that refuses.
        fact: The mistake, with the values.
        door: The user's call: ``'arrays'``, ``'loader'``, ``'stream'``, ``'fit'``, ``'loss'``, or
            a reader of the plug-in.
        scores: The scores.
        labels: The labels.
        facts: Numbers and texts that remedies name.
    """
    misfit = Misfit(scores, labels, {'name': 'logits', 'label_name': 'labels', **facts})
    for row in TABLE:
        is_for_door = not row.doors or door in row.doors
        if row.check == check and is_for_door and row.holds(misfit):
            remedy = row.remedy.format(**misfit.facts)
            return f'{fact}. {remedy}' if remedy[0].isupper() else f'{fact}: {remedy}'
    return fact


def refuse(check: str, fact: str, **details: Any) -> NoReturn:
    """Raise the UserError of a fact, see :func:`explain`."""
    raise UserError(explain(check, fact, **details))


def add_rows(*rows: Row) -> None:
    """Put rows before those of the table, as the plug-in does for its own doors."""
    TABLE[:0] = rows


def is_one_hot(labels: Tensor, axis: int = 1) -> bool:
    """Return whether labels are 1 at one index of an axis, and 0 at all others."""
    if not labels.numel() or labels.shape[axis] < 2:
        return False
    is_binary = ((labels == 0) | (labels == 1)).all()
    return bool(is_binary and (labels.sum(dim=axis) == 1).all())


def are_shares(labels: Tensor) -> bool:
    """Return whether the rows of labels sum to 1, as shares of votes do."""
    if labels.ndim != 2 or labels.shape[1] < 2 or not (labels >= 0).all():
        return False
    return not ((labels.double().sum(dim=1) - 1).abs() > 0.01).any()


def always(_: Misfit) -> bool:
    """Return True, for a row that explains all that no row before it does."""
    return True


ONE_CLASS = (
    'a prediction has labels of several classes, which a softmax cannot have: give one class at a '
    'time, as {name}[:, k:k+1] of a sigmoid with labels[:, k]'
)
FROM_ONE = 'No label is 0: if the classes are numbered from 1, subtract 1. '
LOSS = ('loss',)
TABLE = [
    Row(
        'one label',
        'shape',
        lambda m: not m.labels.ndim,
        'give batches, with a label of each prediction',
    ),
    Row(
        'one map',
        'shape',
        lambda m: m.fit_one_map and m.labels.ndim > 1,
        'a map alone is a batch of one: give {name}[None] and labels[None]',
    ),
    Row(
        'transposed',
        'shape',
        # There are mostly few classes.
        lambda m: m.fit_one_map and len(m.labels) > len(m.scores),
        'each row is one prediction: give {name}.T',
    ),
    Row(
        'other length',
        'shape',
        lambda m: len(m.labels) != len(m.scores),
        'there are {num_labels:,} labels for {num_scores:,} predictions: give one for each',
    ),
    Row(
        'one-hot, classes last',
        'shape',
        lambda m: m.labels.ndim == m.scores.ndim and m.are_one_hot_last,
        'the labels are one-hot: give labels.argmax({last_axis}), a class of each',
    ),
    Row(
        'one-hot',
        'shape',
        lambda m: m.labels.ndim == m.scores.ndim > 1 and is_one_hot(m.labels),
        'the labels are one-hot: give labels.argmax(1), a class of each',
    ),
    Row(
        'other number of labels',
        'shape',
        lambda m: m.labels.ndim == m.scores.ndim == 2 and m.labels.shape != m.scores.shape,
        'each row has {num_columns} labels for {num_scores_of_row} {name}: give one label, of 0 or '
        '1, for each',
    ),
    Row(
        'maps of one class or of several',
        'shape',
        lambda m: m.are_binary and m.labels.shape == m.scores.shape and m.scores.ndim > 2,
        f'if they are maps of one class, give {{name}}[:, None]; else {ONE_CLASS}',
    ),
    Row('several classes', 'shape', lambda m: m.are_binary, ONE_CLASS),
    Row(
        'classes last, loader',
        'shape',
        lambda m: m.have_classes_last,
        'the classes are the second axis: give logits=lambda output: output.movedim(-1, 1), or '
        'output.logits.movedim(-1, 1) of an output that has them',
        doors=('loader',),
    ),
    Row(
        'classes last',
        'shape',
        lambda m: m.have_classes_last,
        'the classes are the second axis, so move the last one there, as by movedim(-1, 1)',
    ),
    Row(
        'other size, loader',
        'shape',
        lambda m: m.labels.ndim == m.scores.ndim - 1 > 1,
        'interpolate them to {size} in logits=…',
        doors=('loader',),
    ),
    Row(
        'other size',
        'shape',
        lambda m: m.labels.ndim == m.scores.ndim - 1 > 1,
        'interpolate {name} to {size}',
    ),
    Row(
        'other shape',
        'shape',
        always,
        '{name} must be (N, K) with labels (N,), or (N, K, H, W) with labels (N, H, W)',
    ),
    Row(
        'unknown axis, loader',
        'axis',
        always,
        'give logits=lambda output: output.movedim(-1, 1) if it is the last, or '
        'logits=lambda output: output if it is the second (with .logits for an output that has '
        'them)',
        doors=('loader',),
    ),
    Row(
        'unknown axis',
        'axis',
        always,
        'give {label_name}[..., None], with {name}[..., None] if it is the second one, or with '
        '{name}.movedim(-1, 1)[..., None] if it is the last',
    ),
    Row(
        'several models, loader',
        'same',
        always,
        'give a loader of each',
        doors=('loader',),
    ),
    Row('several models', 'same', always, 'take a StreamingMetrics for each model'),
    Row(
        'shares',
        'whole',
        lambda m: are_shares(m.labels),
        'They are shares of {num_columns} classes, as of votes: give each row once for '
        'each of its votes. With votes = (V * shares).round().long() of V voters and '
        'i = torch.arange(votes.numel()).repeat_interleave(votes.flatten()), these are the rows '
        'i // {num_columns} with labels i % {num_columns}, and groups=i // {num_columns}',
    ),
    Row('fractions', 'whole', always, 'give the number of the class of each'),
    Row(
        'numbered from one',
        'class',
        lambda m: m.start_at_one,
        FROM_ONE + 'Only if {highest} is to be left out, set ignore_index={highest}',
    ),
    Row(
        'ignored by no loss',
        'class',
        always,
        'They are not ignore_index={ignore_index}: check num_classes, or set ignore_index',
        doors=LOSS,
    ),
    Row(
        'another one is ignored',
        'class',
        lambda m: m.facts['ignore_index'] is not None,
        'They are not ignore_index={ignore_index}: give the label that is to be left out, or '
        'number the classes from 0 to {last}',
    ),
    Row(
        'none is ignored',
        'class',
        always,
        'To leave out a label such as 255, set ignore_index; otherwise number the classes from 0 '
        'to {last}',
    ),
    Row(
        'masked classes',
        'finite',
        lambda m: m.facts['are_masked'],
        'leave classes that are masked out of logits and labels',
    ),
    Row('diverged', 'finite', always, 'the model has diverged, or its input is broken'),
    Row(
        'masked labels',
        'masked',
        always,
        'mask no class that is a label. If they are the logarithm of probabilities p, give zeros '
        'half of the smallest positive one, as p.clamp(min=p[p > 0].min() / 2).log()',
    ),
    Row(
        'no prediction',
        'range',
        lambda m: m.facts['is_nan'],
        'leave out what has no prediction',
    ),
    Row(
        'logits or percentages',
        'range',
        always,
        'take the softmax first if they are logits, and divide percentages by 100',
    ),
    Row(
        'no softmax, or classes last',
        'sum',
        lambda m: m.scores is not None and m.scores.ndim > 2 and len({*m.scores.shape[1:]}) == 1,
        'give the softmax over all classes, or, if the last axis has the classes, '
        '{name}.movedim(-1, 1)',
    ),
    Row('no softmax', 'sum', always, 'give the softmax over all classes'),
    Row(
        'probabilities',
        'logits',
        always,
        'leave its softmax out, or give their logarithm, as logits=lambda p: {probs}.log(). Where '
        'some are 0, it is {probs}.clamp(min=floor).log() with half of the smallest positive one '
        'of all data as floor',
    ),
    Row(
        'sigmoid, loader',
        'sigmoid',
        always,
        'leave the sigmoid out, or give logits=lambda p: torch.logit(p, eps=1e-7)',
        doors=('loader',),
    ),
    Row(
        'sigmoid',
        'sigmoid',
        always,
        'if they are, leave the sigmoid out, or give torch.logit(p, eps=1e-7)',
    ),
    Row('softmax of sigmoids', 'zero to one', always, 'a softmax over them is wrong if they are'),
    Row('one-hot batches', 'one-hot', always, 'give labels.argmax(1), a class of each'),
    Row(
        'tokens',
        'tokens',
        always,
        "Shift both: unpack=lambda b: (b, b['labels'][:, 1:]) and "
        'logits=lambda output: output.logits[:, :-1].movedim(-1, 1)',
    ),
    Row(
        'target of floats',
        'target',
        lambda m: m.labels.is_floating_point() and m.labels.ndim == m.scores.ndim - 1,
        'for labels give target.long()',
    ),
    Row(
        'target with an axis of classes',
        'target',
        lambda m: m.labels.ndim == m.scores.ndim > 2 and m.labels.shape[1] == 1,
        'without its axis of classes give target[:, 0].long()',
    ),
    Row(
        'one-hot target',
        'target',
        lambda m: not m.labels.is_floating_point() and m.labels.shape == m.scores.shape,
        'of a one-hot target give target.argmax(dim=1)',
    ),
    Row(
        'classes of pred last',
        'target',
        lambda m: m.have_classes_last,
        'if the last axis of pred has the classes, give pred.movedim(-1, 1)',
    ),
    Row(
        'binary head',
        'pred',
        always,
        'give logits of at least two classes, also of a binary task, whose heads have '
        'out_channels=2 (mmseg) or num_classes=2 (mmpretrain)',
    ),
]
