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
    def have_classes_last(self) -> bool:
        """Whether the labels would fit, if the last axis of the scores had the classes."""
        return self.scores.ndim > 2 and self.labels.shape == self.scores.shape[:-1]

    @property
    def start_at_one(self) -> bool:
        """Whether several labels are from 1 to K."""
        is_highest = self.labels.max() == self.facts['num_classes']
        return self.labels.numel() > 1 and bool(is_highest and self.labels.min() >= 1)


def always(_: Misfit) -> bool:
    """Return True, for a row that explains all that no row before it does."""
    return True


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        key: The name of the row.
        remedy: The remedy, with facts and attributes of the arrays in braces.
        holds: Whether it explains a refusal.
        door: The door that it is for, such as ``'loader'``; None for all.
    """

    key: str
    remedy: str
    holds: Callable[[Misfit], bool] = always
    door: str | None = None


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
    for row in TABLE.get(check, ()):
        if row.door in (None, door) and row.holds(misfit):
            remedy = row.remedy.format(scores=scores, labels=labels, **misfit.facts)
            return f'{fact}. {remedy}' if remedy[0].isupper() else f'{fact}: {remedy}'
    return fact


def refuse(check: str, fact: str, **details: Any) -> NoReturn:
    """Raise the UserError of a fact, see :func:`explain`."""
    raise UserError(explain(check, fact, **details))


def add_row(check: str, row: Row) -> None:
    """Put a row before those of a check, as the plug-in does for its own doors."""
    TABLE.setdefault(check, []).insert(0, row)


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


ONE_CLASS = (
    'a prediction has labels of several classes, which a softmax cannot have: give one class at a '
    'time, as {name}[:, k:k+1] of a sigmoid with labels[:, k]'
)
# The rows of each check.
TABLE = {
    'shape': [
        Row(
            'one label',
            'give batches, with a label of each prediction',
            lambda m: not m.labels.ndim,
        ),
        Row(
            'one map',
            'a map alone is a batch of one: give {name}[None] and labels[None]',
            lambda m: m.fit_one_map and m.labels.ndim > 1,
        ),
        Row(
            'transposed',
            'each row is one prediction: give {name}.T',
            lambda m: m.fit_one_map and len(m.labels) > len(m.scores),
        ),
        Row(
            'other length',
            'there are {labels.shape[0]:,} labels for {scores.shape[0]:,} predictions: give one '
            'for each',
            lambda m: len(m.labels) != len(m.scores),
        ),
        Row(
            'one-hot',
            'the labels are one-hot: give labels.argmax(1), a class of each',
            lambda m: m.labels.ndim == m.scores.ndim > 1 and is_one_hot(m.labels),
        ),
        Row(
            'one-hot, classes last',
            'the labels are one-hot: give labels.argmax(-1), a class of each',
            lambda m: m.labels.ndim == m.scores.ndim > 2 and is_one_hot(m.labels, -1),
        ),
        Row(
            'other number of labels',
            'each row has {labels.shape[1]} labels for {scores.shape[1]} {name}: give one label, '
            'of 0 or 1, for each',
            lambda m: m.labels.ndim == m.scores.ndim == 2 and m.labels.shape != m.scores.shape,
        ),
        Row(
            'maps of one class or of several',
            f'if they are maps of one class, give {{name}}[:, None]; else {ONE_CLASS}',
            lambda m: m.are_binary and m.labels.shape == m.scores.shape and m.scores.ndim > 2,
        ),
        Row('several classes', ONE_CLASS, lambda m: m.are_binary),
        Row(
            'classes last, loader',
            'the classes are the second axis: give logits=lambda output: output.movedim(-1, 1), or '
            'output.logits.movedim(-1, 1) of an output that has them',
            lambda m: m.have_classes_last,
            door='loader',
        ),
        Row(
            'classes last',
            'the classes are the second axis, so move the last one there, as by movedim(-1, 1)',
            lambda m: m.have_classes_last,
        ),
        Row(
            'other size, loader',
            'interpolate them to {size} in logits=…',
            lambda m: m.labels.ndim == m.scores.ndim - 1 > 1,
            door='loader',
        ),
        Row(
            'other size',
            'interpolate {name} to {size}',
            lambda m: m.labels.ndim == m.scores.ndim - 1 > 1,
        ),
        Row(
            'other shape',
            '{name} must be (N, K) with labels (N,), or (N, K, H, W) with labels (N, H, W)',
        ),
    ],
    'axis': [
        Row(
            'unknown axis, loader',
            'give logits=lambda output: output.movedim(-1, 1) if it is the last, or '
            'logits=lambda output: output if it is the second (with .logits for an output that has '
            'them)',
            door='loader',
        ),
        Row(
            'unknown axis',
            'give {label_name}[..., None], with {name}[..., None] if it is the second one, or with '
            '{name}.movedim(-1, 1)[..., None] if it is the last',
        ),
    ],
    'same': [
        Row('several models, loader', 'give a loader of each', door='loader'),
        Row('several models', 'take a StreamingMetrics for each model'),
    ],
    'whole': [
        Row(
            'shares',
            'They are shares of {labels.shape[1]} classes, as of votes: give each row once for '
            'each of its votes. With votes = (V * shares).round().long() of V voters and i = '
            'torch.arange(votes.numel()).repeat_interleave(votes.flatten()), these are the rows i '
            '// {labels.shape[1]} with labels i % {labels.shape[1]}, and groups=i // '
            '{labels.shape[1]}',
            lambda m: are_shares(m.labels),
        ),
        Row('fractions', 'give the number of the class of each'),
    ],
    'class': [
        Row(
            'numbered from one',
            'No label is 0: if the classes are numbered from 1, subtract 1. Only if {num_classes} '
            'is to be left out, set ignore_index={num_classes}',
            lambda m: m.start_at_one,
        ),
        Row(
            'ignored by no loss',
            'They are not ignore_index={ignore_index}: check num_classes, or set ignore_index',
            door='loss',
        ),
        Row(
            'another one is ignored',
            'They are not ignore_index={ignore_index}: give the label that is to be left out, or '
            'number the classes from 0 to {last}',
            lambda m: m.facts['ignore_index'] is not None,
        ),
        Row(
            'none is ignored',
            'To leave out a label such as 255, set ignore_index; otherwise number the classes '
            'from 0 to {last}',
        ),
    ],
    'finite': [
        Row(
            'masked classes',
            'leave classes that are masked out of logits and labels',
            lambda m: m.facts['are_masked'],
        ),
        Row('diverged', 'the model has diverged, or its input is broken'),
    ],
    'masked': [
        Row(
            'masked labels',
            'mask no class that is a label. If they are the logarithm of probabilities p, give '
            'zeros half of the smallest positive one, as p.clamp(min=p[p > 0].min() / 2).log()',
        ),
    ],
    'range': [
        Row('no prediction', 'leave out what has no prediction', lambda m: m.facts['is_nan']),
        Row(
            'logits or percentages',
            'take the softmax first if they are logits, and divide percentages by 100',
        ),
    ],
    'sum': [
        Row(
            'no softmax, or classes last',
            'give the softmax over all classes, or, if the last axis has the classes, '
            '{name}.movedim(-1, 1)',
            lambda m: (
                m.scores is not None and m.scores.ndim > 2 and len({*m.scores.shape[1:]}) == 1
            ),
        ),
        Row(
            'rounded',
            'if they are rounded, divide each row by its sum; else give the softmax over all '
            'classes',
            lambda m: m.facts.get('is_rounded', False),
        ),
        Row('no softmax', 'give the softmax over all classes'),
    ],
    'logits': [
        Row(
            'probabilities',
            'leave its softmax out, or give their logarithm, as logits=lambda p: {probs}.log(). '
            'Where some are 0, it is {probs}.clamp(min=floor).log() with half of the smallest '
            'positive one of all data as floor',
        ),
    ],
    'sigmoid': [
        Row(
            'sigmoid, loader',
            'leave the sigmoid out, or give logits=lambda p: torch.logit(p, eps=1e-7)',
            door='loader',
        ),
        Row('sigmoid', 'if they are, leave the sigmoid out, or give torch.logit(p, eps=1e-7)'),
    ],
    'zero to one': [
        Row('softmax of sigmoids', 'a softmax over them is wrong if they are'),
    ],
    'one-hot': [
        Row('one-hot batches', 'give labels.argmax(1), a class of each'),
    ],
    'tokens': [
        Row(
            'tokens',
            "Shift both: unpack=lambda b: (b, b['labels'][:, 1:]) and "
            'logits=lambda output: output.logits[:, :-1].movedim(-1, 1)',
        ),
    ],
    'target': [
        Row(
            'target of floats',
            'for labels give target.long()',
            lambda m: m.labels.is_floating_point() and m.labels.ndim == m.scores.ndim - 1,
        ),
        Row(
            'target with an axis of classes',
            'without its axis of classes give target[:, 0].long()',
            lambda m: m.labels.ndim == m.scores.ndim > 2 and m.labels.shape[1] == 1,
        ),
        Row(
            'one-hot target',
            'of a one-hot target give target.argmax(dim=1)',
            lambda m: not m.labels.is_floating_point() and m.labels.shape == m.scores.shape,
        ),
        Row(
            'classes of pred last',
            'if the last axis of pred has the classes, give pred.movedim(-1, 1)',
            lambda m: m.have_classes_last,
        ),
    ],
    'pred': [
        Row(
            'binary head',
            'give logits of at least two classes, also of a binary task, whose heads have '
            'out_channels=2 (mmseg) or num_classes=2 (mmpretrain)',
        ),
    ],
}
