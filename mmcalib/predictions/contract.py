"""The contract: the declarations of a caller, by which alone labelled predictions are made."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmcalib.errors import warn
from mmcalib.misfits import are_shares, explain, is_one_hot, refuse
from mmcalib.options import check_ignore_index
from mmcalib.predictions.image_predictions import IGNORED, ImagePredictions
from mmcalib.tensors import (
    MOST_EXAMPLES,
    ROUNDED_ERROR,
    SUM_TOLERANCE,
    at_least_single,
    check_finite,
    check_labels,
    check_probabilities,
    check_range,
    check_softmax_logits,
    on_float64_device,
    plain_tensor,
)

# Fewer outputs may all lie in [0, 1], or sum to about 1, by chance.
FEW_OUTPUTS = 10
# Rows of so many classes are faster to read row by row.
MANY_CLASSES = 100
# The sums of rounded probabilities err by ROUNDED_ERROR; those of few outputs must be more exact.
EXACT_ERROR = 1e-3
FROM_ZERO_TO_ONE = 'the outputs of the model all lie in [0, 1], as those of a sigmoid do'
SUSPICIONS = {
    # A causal model's logits are of the next token.
    'tokens': 'the labels equal input_ids, the tokens that the model reads, but the logits of a '
    'causal model are of the next token',
    'one-hot': 'the labels are one-hot',
    # A softmax over probabilities is nearly uniform.
    'sum to 1': 'the model returns probabilities, which sum to 1, where logits are wanted',
    'sum to 100': 'the model returns probabilities, which sum to 100, where logits are wanted',
    # A sigmoid of an output of a sigmoid lies between 0.5 and 0.73.
    'sigmoid': FROM_ZERO_TO_ONE,
    'zero to one': FROM_ZERO_TO_ONE,
}
# These refuse at the first few outputs, before a long pass ends.
AT_ONCE = ('tokens', 'sum to 1', 'sum to 100')
# The pixels of an image are alike, so a few images tell nothing of these.
NEED_MANY = ('sigmoid', 'zero to one')


@dataclass
class Contract:
    """The declaration of a caller about its predictions, and the facts that batches have shown.

    Attributes:
        kind: ``'logits'`` or ``'probs'``.
        door: The user's call, see :func:`mmcalib.misfits.explain`.
        ignore_index: The label of predictions that are not valid.
        class_axis_is_known: Whether the caller has named the class axis, or the axes of a batch
            have told it.
        takes_several_labels: Whether labels ``(N, L)`` beside scores ``(N, L)`` are L labels.
        num_images: The number of images so far.
        batch_kind: The kind of all batches so far, such as ``'10 classes'``; None before the first.
    """

    kind: str = 'logits'
    door: str = 'arrays'
    ignore_index: int | None = None
    class_axis_is_known: bool = False
    takes_several_labels: bool = True
    num_images: int = 0
    batch_kind: str | None = None
    # The number of outputs, and the largest error of what is suspected, by name of a suspicion.
    _errors: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ignore_index is not None:
            check_ignore_index(self.ignore_index)

    def read(
        self,
        scores: Tensor,
        labels: Tensor,
        valid: Tensor | None = None,
    ) -> ImagePredictions:
        """Return a batch as predictions, on a device that has float64.

        Args:
            scores: ``(N, K, *)``; ``(N,)`` or K = 1 for one score of two classes; ``(N, L)`` with
                labels ``(N, L)`` of 0 and 1 for L labels.
            labels: ``(N, *)``; an axis of one class is left out.
            valid: The mask of the labels that count; None for all but the ignored ones.

        Raises:
            UserError: For scores and labels that do not fit each other, the declaration or the
                batches before.
        """
        scores = on_float64_device(scores)
        scores = scores[:, None] if scores.ndim == 1 else scores
        labels = without_class_axis(scores, plain_tensor(labels).to(scores.device))
        if valid is not None:
            valid = without_class_axis(scores, valid.to(scores.device))
        several_labels = labels.shape == scores.shape and scores.ndim == 2 and scores.shape[1] > 1
        check_whole(labels)
        self._check_shapes(scores, labels, several_labels, valid)
        labels = self._read_labels(scores, labels.long(), several_labels, valid)
        self._check_values(scores, labels, several_labels)
        predictions = ImagePredictions(
            predicted=predicted_classes(scores, self.kind, several_labels),
            labels=labels,
            images=self.num_images + torch.arange(len(scores), device='cpu'),
            several_labels=several_labels,
            **{self.kind: scores[:, None] if several_labels else scores},
        )
        self._take_kind(predictions.kind)
        self.num_images += len(scores)
        return predictions

    def _check_shapes(
        self, scores: Tensor, labels: Tensor, several_labels: bool, valid: Tensor | None
    ) -> None:
        """Refuse labels that do not fit, and maps of which no shape tells the class axis."""
        name = self.kind
        fit = scores.ndim > 1 and scores.shape[1] and labels.shape == label_shape(scores)
        if several_labels:
            are_classes = self.kind == 'probs' and all_sum_to_one(scores, valid)
            fit = self.takes_several_labels and not are_classes
        if not fit:
            self._refuse(
                'shape',
                f'{name} {tuple(scores.shape)} do not fit labels {tuple(labels.shape)}',
                scores=scores,
                labels=labels,
                size=tuple(labels.shape[1:]),
            )
        if self.kind == 'logits' and scores.ndim > 2 and not self.class_axis_is_known:
            # Logits (N, L, K) with L = K would be read with swapped axes.
            if scores.shape[1] > 1 and len(set(scores.shape[1:])) == 1:
                fact = f'nobody knows which axis of logits {tuple(scores.shape)} has the classes'
                self._refuse('axis', fact)
            self.class_axis_is_known = True

    def _read_labels(
        self, scores: Tensor, labels: Tensor, several_labels: bool, valid: Tensor | None
    ) -> Tensor:
        """Return labels in which those that do not count are -1; refuse those of no class."""
        if self.ignore_index is not None:
            is_kept = labels != self.ignore_index
            valid = is_kept if valid is None else valid & is_kept
        check_labels(
            labels if valid is None else labels[valid],
            2 if several_labels else max(scores.shape[1], 2),
            door=self.door,
            ignore_index=self.ignore_index,
        )
        return labels if valid is None else labels.masked_fill(~valid, IGNORED)

    def _check_values(self, scores: Tensor, labels: Tensor, several_labels: bool) -> None:
        """Refuse logits that are not finite, and valid values that are no probabilities."""
        if self.kind == 'logits' and several_labels:
            check_finite(scores, self.kind)
            return
        if self.kind == 'logits':
            check_softmax_logits(scores, self.kind, class_axis=1, labels=labels)
            return
        valid = labels >= 0
        checked = scores
        if not valid.all():
            checked = scores[valid] if several_labels else scores.movedim(1, -1)[valid]
        checked = at_least_single(checked)
        if several_labels or scores.shape[1] == 1:
            check_range(checked, self.kind)
        else:
            check_probabilities(checked.movedim(1, 0), self.kind, scores=scores)

    def note(self, batch: ImagePredictions, tokens: Tensor | None = None) -> None:
        """Note how far a batch of logits is from each suspicion; refuse what enough outputs show.

        Args:
            batch: The predictions of :meth:`read`.
            tokens: Token ids ``(N, L)`` that the model has read, None if there are none.

        Raises:
            UserError: For probabilities, and labels that are the tokens.
        """
        scores = batch.logits
        labels = batch.labels
        if tokens is not None and tokens.shape == labels.shape and scores.ndim == 3:
            differ = bool((tokens.to(labels) != labels)[batch.valid].any())
            self._note_error('tokens', int(batch.valid.sum()), math.inf if differ else 0.0)
        if scores.numel():
            if batch.several_labels and self._may_hold('one-hot'):
                error = 0.0 if is_one_hot(labels) else math.inf
                self._note_error('one-hot', len(labels), error)
            name = 'sigmoid' if batch.are_of_sigmoid else 'zero to one'
            if self._may_hold(name):
                lowest, highest = scores.aminmax()
                count = scores.numel() if batch.are_of_sigmoid else len(scores)
                is_inside = lowest >= 0 and highest <= 1
                self._note_error(name, count, 0.0 if is_inside else math.inf)
            if not batch.are_of_sigmoid:
                self._note_sums(scores)
        for name in AT_ONCE:
            if self._holds(name) and self._errors[name][0] >= FEW_OUTPUTS:
                self._refuse_suspicion(name)

    def _note_sums(self, scores: Tensor) -> None:
        """Note the largest relative error of a sum over classes, if it should be 1, or 100."""
        names = {f'sum to {total}': total for total in (1, 100)}
        if not any(map(self._may_hold, names)):
            return
        are_positive = scores.amin() >= 0
        for name, total in names.items():
            error = math.inf
            if are_positive:
                sums = at_least_single(scores).sum(dim=1)
                error = (sums / total - 1).abs().amax().item()
            self._note_error(name, scores.numel() // scores.shape[1], error)

    def _note_error(self, name: str, count: int, error: float) -> None:
        count_before, error_before = self._errors.get(name, (0, 0.0))
        self._errors[name] = (count_before + count, max(error_before, error))

    def _may_hold(self, name: str) -> bool:
        return self._errors.get(name, (0, 0.0))[1] < ROUNDED_ERROR

    def _holds(self, name: str) -> bool:
        """Return whether a suspicion has held for all batches, and these are enough."""
        count, error = self._errors.get(name, (0, 0.0))
        is_enough = count >= (FEW_OUTPUTS if name in NEED_MANY else 1)
        return is_enough and error < (ROUNDED_ERROR if count >= FEW_OUTPUTS else EXACT_ERROR)

    def finish(self, *, refuses_sigmoids: bool = True) -> None:
        """Refuse what no single batch shows, or warn of it.

        Args:
            refuses_sigmoids: Whether to refuse outputs of sigmoids. False warns, for a training
                whose first outputs may be small.

        Warns:
            UserWarning: For outputs of a softmax that may be those of several sigmoids.

        Raises:
            UserError: For labels that are all one-hot, which are of one class rather than several,
                or the tokens that the model reads; for probabilities, and outputs of sigmoids.
        """
        for name, fact in SUSPICIONS.items():
            if not self._holds(name):
                continue
            if name == 'zero to one' or (name == 'sigmoid' and not refuses_sigmoids):
                warn(explain(name, fact, door=self.door))
            else:
                self._refuse_suspicion(name)

    def _refuse_suspicion(self, name: str) -> None:
        probs = '(p / 100)' if name == 'sum to 100' else 'p'
        check = 'logits' if name.startswith('sum') else name
        self._refuse(check, SUSPICIONS[name], probs=probs)

    def _take_kind(self, kind: str | None) -> None:
        """Refuse batches of another kind than those before, such as those of another model."""
        kinds = {self.batch_kind, kind} - {None}
        if len(kinds) > 1:
            self._refuse('same', f'some batches have {self.batch_kind}, and others {kind}')
        self.batch_kind = self.batch_kind or kind

    def state_dict(self) -> dict[str, Any]:
        """Return what the batches have shown, as plain numbers, texts and dicts."""
        return {
            'num_images': self.num_images,
            'batch_kind': self.batch_kind,
            'class_axis_is_known': self.class_axis_is_known,
            'errors': copy.deepcopy(self._errors),
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        """Take in what other batches have shown, such as those of another process."""
        self._take_kind(state['batch_kind'])
        self.num_images += state['num_images']
        self.class_axis_is_known |= state['class_axis_is_known']
        for name, (count, error) in state['errors'].items():
            self._note_error(name, count, error)

    def _refuse(self, check: str, fact: str, **details: Any) -> None:
        refuse(check, fact, door=self.door, name=self.kind, **details)


def without_class_axis(scores: Tensor, labels: Tensor) -> Tensor:
    """Return labels ``(N, *)`` for scores ``(N, K, *)``, without a class axis of size 1.

    So labels of one column ``(N, 1)``, and masks ``(N, 1, H, W)`` or ``(N, H, W, 1)``, are read.
    """
    if labels.ndim == scores.ndim > 1:
        for axis in (1, labels.ndim - 1):
            if labels.shape[axis] == 1:
                return labels.squeeze(axis)
    return labels


def label_shape(scores: Tensor) -> torch.Size:
    """Return the shape ``(N, *)`` of the labels of scores ``(N, K, *)``."""
    return scores.shape[:1] + scores.shape[2:]


def check_whole(labels: Tensor) -> None:
    """Refuse labels that are no whole numbers, such as shares ``(N, K)`` of votes."""
    if not labels.is_floating_point():
        return
    fractions = labels[labels != labels.round()]  # NaN is among them.
    if len(fractions):
        examples = [f'{label:.7g}' for label in fractions[:MOST_EXAMPLES].tolist()]
        fact = f'labels must be whole numbers, got [{", ".join(examples)}]'
        refuse('whole', fact, labels=labels)


def check_no_shares(labels: Tensor) -> None:
    """Refuse shares ``(N, K)`` of classes in place of labels, where a type is checked next."""
    if labels.is_floating_point() and are_shares(labels):
        check_whole(labels)


def all_sum_to_one(probs: Tensor, valid: Tensor | None) -> bool:
    """Return whether probabilities ``(N, K)`` are those of K classes.

    Args:
        probs: The probabilities.
        valid: The mask ``(N, K)`` of those that count; other ones may have any value.
    """
    if valid is not None and valid.all(dim=1).any():
        probs = probs[valid.all(dim=1)]
    return bool(((probs.sum(dim=1) - 1).abs() < SUM_TOLERANCE).all())


def predicted_classes(scores: Tensor, kind: str, several_labels: bool) -> Tensor:
    """Return the ``(N, *)`` predicted classes of scores ``(N, K, *)``, the first one of equals."""
    if scores.shape[1] > 1 and not several_labels:
        are_rows = scores.dim() == 2 and scores.shape[1] >= MANY_CLASSES
        if are_rows and scores.is_cpu and scores.dtype in (torch.float32, torch.float64):
            # NumPy takes a tenth of PyTorch's time on rows of 1,000 classes, and half of 100.
            return torch.from_numpy(scores.detach().numpy().argmax(axis=1))
        # It takes a third of the time of ``argmax`` on maps, and half of it on rows.
        return scores.max(dim=1).indices
    probs = at_least_single(scores).sigmoid() if kind == 'logits' else scores
    predicted = (probs > 0.5).long()
    return predicted if several_labels else predicted[:, 0]
