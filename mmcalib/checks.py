"""Checks of options and tensors, and the error for a user's mistake.

Every tool prints a :class:`UserError` in one line, without a traceback.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command's help and its errors do not wait for torch
    import torch
    from torch import Tensor


# How far a probability may lie above 1, and how far the sum of a half-precision softmax from 1.
TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-2
# Names that 0.3.0 was the last to have, and what to do; for one release. Types are capitalised, and
# stand before a point and their option.
GONE = {
    'CPCLoss': 'use MarginLabelSmoothingLoss',
    'TextDataPreprocessor': 'leave it out, Newsgroups20 gives ids',
    'PackText': "use PackInputs with input_key='ids'",
    'VocabularyHook': 'use WordVectorsHook',
    'DisagreementMetric': "use ImageScoreMetric(scores=['mutual_information'])",
    'expected_dice': 'use soft_dice',
    'variance': 'use mutual_information',
    'venn-abers': 'use platt or beta',
    'boundary-temperatures': 'use class-temperatures',
    'local': 'use class-conditional',
    '--no-pin-memory': 'use --cfg-options train_dataloader.pin_memory=False',
    '--no-persistent-workers': 'use --cfg-options train_dataloader.persistent_workers=False',
    '--image': 'leave it out, the sheet of one image is gone',
    '--severity': 'leave it out, the sheet of one image is gone',
    '--all': 'use --samples',
    '--one-at-a-time': 'leave it out, or predict with fewer checkpoints at a time',
    '--interval': 'leave it out: every image is drawn',
    '--wait-time': 'leave it out',
    '--out-item': 'leave it out: --out has the predictions, results.json the metrics',
    'LoadMembersHook': 'leave it out, and call mmcalib.runs.model.load',
    '--holdout': 'leave it out, since the figures are cross-fitted',
    'ClasswiseAECE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'TACE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'convention': 'leave it out, and call the other package for its number',
    'AdaFocalHook': 'use LearnFromValidationHook',
    'CALSHook': 'use LearnFromValidationHook',
    'LossScheduleHook.mode': 'use values={epoch: value}',
    'LossScheduleHook.factor': 'use values={epoch: value}',
    'LossScheduleHook.interval': 'use values={epoch: value}',
    'LossScheduleHook.cap': 'use values={epoch: value}',
    'LogitDistanceHook.module': 'leave it out, the loss of the main head is watched',
    **{
        f'ReliabilityDiagramHook.{name}': 'use tools/visualize.py after the test'
        for name in ('num_bins', 'equal_mass', 'zoom', 'risk_coverage', 'boundary_curve', 'name')
    },
}


class UserError(ValueError):
    """A mistake in a config, a checkpoint, a file or the data that the user can mend.

    Its message has problem, value and remedy.
    """

    @property
    def reason(self) -> str:
        """The message without the traceback that a worker process puts around it."""
        return str(self).rpartition(f'{type(self).__name__}: ')[2].strip()


def nearest(name: object, known: Iterable[object], *, likeness: float = 0.7) -> str | None:
    """Return the known name that is most like another one, None if none is like it.

    Args:
        name: The one that does not exist; what is not a text is like none.
        known: Those that do.
        likeness: The least that counts, from 0 to 1.
    """
    if not isinstance(name, str):
        return None
    by_lower = {each.lower(): each for each in known if isinstance(each, str)}
    found = get_close_matches(name.lower(), by_lower, 1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def suggestion(name: object, known: Iterable[object], *, of: str = '') -> str:
    """Return ``; did you mean X?``, the end of an error, or nothing where no name is near.

    Of a name that an earlier version had, what to use in its place. An option is `of` a type.
    """
    gone = GONE.get(f'{of}.{name}', GONE.get(name))
    if gone:
        return f'; {name} is gone since 0.3.0: {gone}'
    found = nearest(name, known, likeness=0.6)  # two letters of ECE swapped
    return f'; did you mean {found}?' if found else ''


def did_you_mean(name: str, known: Iterable[str], *, of: str = '') -> str:
    """Return :func:`suggestion`, or all known names where none is near."""
    known = list(known)
    return suggestion(name, known, of=of) or f'; there are {", ".join(sorted(known))}'


def check_integer(name: str, value: int, *, least: float = 1) -> int:
    """Return an option that is an integer of at least `least`.

    Raises:
        TypeError: If it is no integer; a boolean is none.
        ValueError: If it is below `least`.
    """
    least_of_all = f' of at least {least}' * (least > -float('inf'))
    wanted = f'{name} must be an integer{least_of_all}, got {value!r}'
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(wanted)
    if value < least:
        raise UserError(wanted)
    return value


def check_ignore_index(value: int) -> int:
    """Return the label of what to leave out, an integer such as 255 or -1."""
    return check_integer('ignore_index', value, least=-float('inf'))


def check_number(
    name: str, value: float, *, least: float = 0.0, most: float = float('inf')
) -> float:
    """Return an option that is a finite number from `least` to `most`.

    Raises:
        TypeError: If it is no number; a boolean or a text is none.
        ValueError: If it is out of range, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f'{name} must be a number, got {value!r}')
    if not (least <= value <= most and abs(value) < float('inf')):
        wanted = f'in [{least:g}, {most:g}]'
        if most == float('inf'):
            wanted = f'a finite number of at least {least:g}'
        raise UserError(f'{name} must be {wanted}, got {value!r}')
    return value


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return an option that has a few possible values, or raise a ValueError that names them."""
    if value not in choices:
        near = suggestion(str(value), choices)
        raise UserError(f'{name} must be one of {tuple(choices)}, got {value!r}{near}')
    return value


def check_choices(name: str, values: str | Collection[str], choices: Collection[str]) -> tuple:
    """Return an option that is one or more of a few values, each once, as a tuple."""
    values = (values,) if isinstance(values, str) else tuple(dict.fromkeys(values))
    if not values:
        raise UserError(f'{name} must be some of {tuple(choices)}, got none')
    return tuple(check_choice(name, value, choices) for value in values)


def check_share(name: str, value: float) -> float:
    """Return an option that is a number between 0 and 1, neither of them."""
    if not 0 < check_number(name, value, most=1) < 1:
        raise UserError(f'{name} must be a share between 0 and 1, got {value!r}')
    return value


def check_labels(labels: Tensor, num_classes: int, *, name: str = 'target', hint: str = '') -> None:
    """Raise a ValueError that counts and names the labels outside [0, K), if there are any.

    Args:
        labels: Integers of any shape.
        num_classes: K.
        name: What the error calls them.
        hint: What to do about it, at the end of the error.
    """
    import torch

    # In one wait for a GPU.
    lowest, highest = torch.stack(labels.aminmax()).tolist() if labels.numel() else (0, 0)
    if lowest < 0 or highest >= num_classes:
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        found = wrong.unique().tolist()
        shown = ', '.join(map(str, found[:5])) + ', …' * (len(found) > 5)
        message = f'{name} has {len(wrong)} labels outside [0, {num_classes}): {shown}'
        raise UserError(f'{message}. {hint}' if hint else message)


def check_finite(scores: Tensor, name: str) -> None:
    """Raise a ValueError for values that are NaN or infinite."""
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite() and (wrong := int((~scores.isfinite()).sum())):
        kind, cause = 'NaN or infinite values', 'the model has diverged, or its input is broken'
        if int((scores == -float('inf')).sum()) == wrong:
            kind, cause = 'values of -inf', 'leave classes that are masked out of logits and labels'
        raise UserError(f'{name} has {wrong} {kind} out of {scores.numel()}: {cause}')


def check_range(values: Tensor, name: str) -> None:
    """Raise a ValueError for values that are not from 0 to 1."""
    # One pass, twenty times cheaper than the comparisons; of NaN both are NaN.
    lowest, highest = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (lowest >= 0 and highest <= 1 + TOLERANCE):
        outside = values[~((values >= 0) & (values <= 1 + TOLERANCE))]
        first = outside[0].item()
        remedy = 'take the softmax first if they are logits, and divide percentages by 100'
        if first != first:
            remedy = 'leave out what has no prediction'
        raise ValueError(
            f'{name} has {len(outside)} of {values.numel()} values outside [0, 1], such as '
            f'{first:.7g}: {remedy}'
        )


def check_probabilities(probs: Tensor, name: str) -> None:
    """Raise a ValueError for ``(K, *)`` values that are no probabilities of K classes."""
    check_range(probs, name)
    total = probs.sum(dim=0)
    wrong = total[(total - 1).abs() > SUM_TOLERANCE]
    if len(wrong):
        raise ValueError(
            f'{name} has {len(wrong)} of {total.numel()} rows that do not sum to 1, such as '
            f'{wrong[0].item():.7g}: give the softmax over all classes'
        )


def at_least_single(values: Tensor) -> Tensor:
    """Return half-precision values in float32, others as they are."""
    return values.float() if values.is_floating_point() and values.element_size() < 4 else values


def check_explained(logits: Tensor, predicted: Tensor, name: str) -> None:
    """Raise a ValueError for logits ``(K, *)`` that are not finite, or not the prediction's."""
    check_finite(logits, f'seg_logits of {name}')
    if len(logits) == 1:
        return
    wrong = int((logits.gather(0, predicted[None])[0] < logits.amax(dim=0)).sum())
    if wrong:
        raise UserError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {wrong} pixels. '
            'Under test-time augmentation mmseg keeps only the logits of the last augmentation, '
            'which are not those of the prediction: test without it'
        )


def smallest_probability(dtype: torch.dtype) -> float:
    """Return what a probability counts as that its type of float has rounded to 0."""
    import torch

    if dtype == torch.float16:
        return 2.0**-25  # half of the least there is
    return torch.finfo(dtype).tiny  # less is flushed to 0 on some devices
