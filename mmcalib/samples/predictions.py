"""An image's predictions as calibration metrics need them, out of logits or probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmcalib.samples.nll_curve import BETAS, nll_curve

# Listed probabilities that are counted together.
LISTED_PIECE = 1 << 16


class ClassProbabilities(NamedTuple):
    """The probabilities that all classes were given, those below a floor only as sums.

    Of a trained network's K probabilities of a pixel, one or two are above 1/15.

    Attributes:
        floor: Probabilities of at least this are listed.
        count: M, how many predictions there are.
        labels: ``(K,)`` int64, how many are truly of each class.
        below: ``(K,)`` float64, the sum of the probabilities below the floor.
        klass: ``(E,)`` int64, of which class each listed probability is.
        prob: ``(E,)`` the listed probabilities.
        is_label: ``(E,)`` booleans, whether that class is the true one.
    """

    floor: float
    count: int
    labels: Tensor
    below: Tensor
    klass: Tensor
    prob: Tensor
    is_label: Tensor

    def pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield class, value and truth of some listed probabilities at a time.

        What is made of all of them together would be several times the size of an image's logits.
        """
        for start in range(0, len(self.prob), LISTED_PIECE):
            part = slice(start, start + LISTED_PIECE)
            yield self.klass[part], self.prob[part], self.is_label[part]


class Prediction(NamedTuple):
    """The predictions for one image: one from a classifier, one per pixel from a segmentor.

    All on the CPU; what was not asked for is None.

    Attributes:
        conf: ``(M,)`` probability of the predicted class, float32 or float64.
        correct: ``(M,)`` booleans.
        num_classes: K, 2 for a binary head; None if unknown.
        predicted: ``(M,)`` int64.
        nll: The sum of the negative log-likelihoods of the true classes, in nats; float64. Where
            each prediction is of an image of its own, ``(M,)``.
        brier: The sum over predictions and classes of (probability - [is the true class])²;
            likewise.
        classes: The probabilities of all classes.
        distance: ``(M,)`` int64, of pixels: in which range of distance from another label, see
            :func:`~mmcalib.samples.boundary_distance.distance_ranges`.
        doubt: ``(M,)`` float64, :func:`doubt_of` the prediction, by which it is ranked.
        nll_curve: ``(3, B)`` float64, the sum of the NLLs and their derivatives at
            :data:`~mmcalib.samples.nll_curve.BETAS`, ``(M, 3, B)`` likewise.
        left_out: ``(I,)`` the confidences of the pixels that do not count, of the type of `conf`;
            None of a classifier.
        label: ``(M,)`` int64 true classes.
        own: ``(M,)`` probabilities of the true classes, of the type of `conf`.
        objects: ``(O, 5)`` float64, of a segmented image: class, size, mean confidence, expected
            IoU and IoU of each object, see :mod:`~mmcalib.samples.objects`; NaN for the IoU of one
            that has no labelled pixel.
    """

    conf: Tensor
    correct: Tensor
    num_classes: int | None = None
    predicted: Tensor | None = None
    nll: Tensor | None = None
    brier: Tensor | None = None
    classes: ClassProbabilities | None = None
    distance: Tensor | None = None
    doubt: Tensor | None = None
    nll_curve: Tensor | None = None
    left_out: Tensor | None = None
    label: Tensor | None = None
    own: Tensor | None = None
    objects: Tensor | None = None


# What else than confidence and correctness can be asked for.
WANTED = ('predicted', 'nll', 'brier', 'classes', 'distance', 'doubt', 'nll_curve', 'own')
WANTED += ('label', 'objects')
# Pixels whose logits are worked on together: about what the cache of a core holds.
PIECE_BYTES = 1 << 20
GPU_PIECE_BYTES = 1 << 26


# Above it, float32 tells 1 - confidence to fewer than 12 bits, and at 17 nats not at all.
NEARLY_ONE = 1 - 2.0**-12


def doubt_of(conf: Tensor, others: Tensor) -> Tensor:
    """Return 1 - confidence in float64, to rank saturated predictions by.

    Args:
        conf: ``(M,)`` probability of the predicted class.
        others: ``(M,)`` sum of the probabilities of the other classes, which stands for it where
            the confidence is next to 1.
    """
    return torch.where(conf > NEARLY_ONE, others.double(), 1 - conf.double())


def smallest_probability(dtype: torch.dtype) -> float:
    """Return what a probability counts as that its type of float has rounded to 0."""
    if dtype == torch.float16:
        return 2.0**-25  # half of the least there is
    return torch.finfo(dtype).tiny  # less is flushed to 0 on some devices


def of_probabilities(
    probs: Tensor,
    label: Tensor,
    *,
    predicted: Tensor | None = None,
    wanted: Set[str] = frozenset(),
    floor: float = 0.0,
    smallest: Tensor | float | None = None,
    of_images: bool = False,
) -> Prediction:
    """Return the wanted fields of predictions by probabilities.

    Args:
        probs: ``(K, M)`` float32 or float64.
        label: ``(M,)`` true classes.
        predicted: ``(M,)`` classes, those of the highest probability if None.
        wanted: Some of ``WANTED``.
        floor: Of the listed probabilities of all classes.
        smallest: What lower probabilities count as in the negative log-likelihood, of all classes
            or of each, ``(K,)``; if None, :func:`smallest_probability` of the type.
        of_images: Each prediction is of an image of its own.
    """
    if predicted is None:
        conf, predicted = probs.max(dim=0)
    else:
        conf = probs.gather(0, predicted[None])[0]
    own = probs.gather(0, label[None])[0]
    nll = brier = classes = doubt = curve = None
    if smallest is None:
        smallest = smallest_probability(probs.dtype)
    lowest = torch.as_tensor(smallest, dtype=torch.float64).to(probs).expand(len(probs))
    if 'doubt' in wanted:
        doubt = doubt_of(conf, probs.scatter(0, predicted[None], 0).sum(dim=0)).cpu()
    if 'nll' in wanted:
        nll = -own.clamp(min=lowest.index_select(0, label)).log().double()
        nll = nll if of_images else nll.sum()
    if 'nll_curve' in wanted:
        curve = _curve_of(probs, lowest, label, of_images=of_images).cpu()
    if 'brier' in wanted:
        squares = probs.square().sum(dim=0) - 2 * own + 1
        brier = squares.clamp_(min=0).double()
        brier = brier if of_images else brier.sum()
    if 'classes' in wanted:
        index = places_of((probs >= floor).flatten())
        klass = index.div(max(probs.shape[1], 1), rounding_mode='floor')
        listed = probs.flatten().index_select(0, index)
        sums = probs.sum(dim=1, dtype=torch.float64)
        sums -= torch.bincount(klass, weights=listed.double(), minlength=len(probs))
        column = index - klass * probs.shape[1]
        classes = ClassProbabilities(
            floor,
            probs.shape[1],
            torch.bincount(label, minlength=len(probs)).cpu(),
            sums.clamp_(min=0).cpu(),
            klass.cpu(),
            listed.cpu(),
            (label.index_select(0, column) == klass).cpu(),
        )
    return Prediction(
        conf.cpu(),
        (predicted == label).cpu(),
        len(probs),
        predicted.cpu() if 'predicted' in wanted else None,
        nll if nll is None else nll.cpu(),
        brier if brier is None else brier.cpu(),
        classes,
        doubt=doubt,
        nll_curve=curve,
        label=label.cpu() if 'label' in wanted else None,
        own=own.cpu() if 'own' in wanted else None,
    )


def _curve_of(probs: Tensor, lowest: Tensor, label: Tensor, *, of_images: bool) -> Tensor:
    """Return the NLL curve of ``(K, M)`` probabilities, in pieces that stay in the cache."""
    step = max(PIECE_BYTES // (len(probs) * probs.element_size()), 1)
    found = [torch.zeros(0, 3, len(BETAS), dtype=torch.float64, device=probs.device)]
    for piece, own in zip(probs.split(step, dim=1), label.split(step), strict=True):
        curve = nll_curve(piece.clamp(min=lowest[:, None]).log(), own)
        found.append(curve if of_images else curve.sum(dim=0, keepdim=True))
    curves = torch.cat(found)
    return curves if of_images else curves.sum(dim=0)


def places_of(mask: Tensor) -> Tensor:
    """Return where a ``(n,)`` mask is true; taking by index is several times as fast as by mask."""
    if mask.device.type == 'cpu':  # 0.2 ms of 375 x 500 pixels, where torch takes 1.0
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


class SoftmaxReading(NamedTuple):
    """Predictions out of logits, and checks of the logits.

    Attributes:
        prediction: Of the valid ones.
        finite: Whether all logits are.
        unexplained: How many predicted classes have not the highest logit; unless it is 0 of finite
            ones, the prediction says nothing.
    """

    prediction: Prediction
    finite: bool
    unexplained: int


def of_logits(
    logits: Tensor,
    predicted: Tensor,
    label: Tensor,
    valid: Tensor,
    *,
    wanted: Set[str] = frozenset(),
    floor: float = 0.0,
) -> SoftmaxReading:
    """Return the wanted fields of predictions by the softmax of logits.

    In pieces that stay in the cache, so that each logit comes from memory once, and nothing of the
    size of the logits is allocated. A constant added to all of them changes nothing, however large.

    Args:
        logits: ``(K, n)`` float32 or float64.
        predicted: ``(n,)`` int64 predicted classes.
        label: ``(n,)`` int64 true classes, in range also where they are not valid.
        valid: ``(n,)`` booleans, which predictions count.
        wanted: Some of ``WANTED``.
        floor: Of the listed probabilities of all classes.
    """
    num_classes, count = logits.shape
    budget = PIECE_BYTES if logits.device.type == 'cpu' else GPU_PIECE_BYTES
    step = max(budget // (num_classes * logits.element_size()) // 64 * 64, 64)
    memory = logits.new_empty(num_classes * min(step, count))
    conf = logits.new_empty(count)
    doubt = logits.new_empty(count, dtype=torch.float64) if 'doubt' in wanted else None
    squares = torch.zeros((), dtype=torch.float64, device=logits.device)
    ends = [logits.new_zeros(())]
    listed = _Listed(num_classes, floor, logits) if 'classes' in wanted else None
    curve = None
    if 'nll_curve' in wanted:
        curve = torch.zeros(3, len(BETAS), dtype=torch.float64, device=logits.device)
    for start in range(0, count, step):
        part = slice(start, start + step)
        piece, kept = logits[:, part], places_of(valid[part])
        exps = memory[: piece.numel()].view(piece.shape)
        torch.sub(piece, piece.gather(0, predicted[None, part]), out=exps)
        # Cheaper than the highest logits, and NaN if any is.
        ends += [exps.amax(), exps.amin()]
        total = exps.exp_().sum(dim=0)
        share = torch.reciprocal(total, out=conf[part])  # the highest logit has exp(0)
        if doubt is not None:
            own = predicted[None, part]
            others = exps.scatter_(0, own, 0).sum(dim=0)
            doubt[part] = doubt_of(share, others * share)
            exps.scatter_(0, own, 1)
        if listed is not None:
            listed.add(exps, share, predicted[part], label[part], kept)
        if 'brier' in wanted:
            of_all = exps.square_().sum(dim=0).mul_(share).mul_(share)
            squares += of_all.index_select(0, kept).double().sum()
        if curve is not None:
            own = label[part].index_select(0, kept)
            curve += nll_curve(piece.index_select(1, kept), own).sum(dim=0)
    correct = predicted == label
    own = None
    if 'own' in wanted:
        surplus = logits.gather(0, label[None])[0] - logits.gather(0, predicted[None])[0]
        own = (surplus.exp() * conf)[valid].cpu()
    wrong = places_of(valid & ~correct)
    conf_of_wrong = conf.index_select(0, wrong)
    label_of_valid, left_out = label, conf[:0]
    if not valid.all():
        kept, left_out = places_of(valid), conf.index_select(0, places_of(~valid))
        conf, correct = (plane.index_select(0, kept) for plane in (conf, correct))
        doubt = doubt if doubt is None else doubt.index_select(0, kept)
        if listed is not None:
            label_of_valid = label.index_select(0, kept)
    # Where the prediction is right, the true class has the highest logit. In float64, since at 3e38
    # the difference of two is beyond float32.
    surplus = logits[predicted[wrong], wrong].double() - logits[label[wrong], wrong].double()
    nll = brier = None
    if 'nll' in wanted:
        nll = (surplus.sum() - conf.log().double().sum()).cpu()
    if 'brier' in wanted:
        of_labels = conf.double().sum() - (conf_of_wrong * (1 - (-surplus).exp())).sum()
        brier = (squares - 2 * of_labels + len(conf)).clamp(min=0).cpu()
    prediction = Prediction(
        conf.cpu(),
        correct.cpu(),
        num_classes,
        predicted[valid].cpu() if 'predicted' in wanted else None,
        nll,
        brier,
        None if listed is None else listed.result(label_of_valid),
        doubt=doubt if doubt is None else doubt.cpu(),
        nll_curve=curve if curve is None else curve.cpu(),
        left_out=left_out.cpu(),
        label=label[valid].cpu() if 'label' in wanted else None,
        own=own,
    )
    ends, unexplained = torch.stack(ends), 0
    finite = ends.isfinite().all() or logits.isfinite().all()
    if finite and ends.max() > 0:
        unexplained = logits.gather(0, predicted[None])[0].less(logits.amax(dim=0)).sum()
    return SoftmaxReading(prediction, bool(finite), int(unexplained))


class _Listed:
    """Gathers the probabilities of all classes, piece by piece."""

    def __init__(self, num_classes: int, floor: float, like: Tensor) -> None:
        self.floor = floor
        self._sums = like.new_zeros(num_classes, dtype=torch.float64)
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(
        self, exps: Tensor, share: Tensor, predicted: Tensor, label: Tensor, kept: Tensor
    ) -> None:
        """Add the probabilities ``exps * share``, ``(K, P)``, of the predictions at some places."""
        weights = torch.zeros_like(share).index_copy_(0, kept, share.index_select(0, kept))
        self._sums += exps @ weights
        # Where one class has nearly all, no other reaches the floor.
        sure = share.index_select(0, kept) > 1 - self.floor
        top, rest = (kept.index_select(0, places_of(mask)) for mask in (sure, ~sure))
        klass = predicted.index_select(0, top)
        self._parts.append((klass, share.index_select(0, top), klass == label.index_select(0, top)))
        probs = exps.index_select(1, rest) * share.index_select(0, rest)
        index = places_of(probs.view(-1) >= self.floor)
        klass = index.div(max(len(rest), 1), rounding_mode='floor')
        column = index - klass * len(rest)
        own = label.index_select(0, rest).index_select(0, column) == klass
        self._parts.append((klass, probs.view(-1).index_select(0, index), own))

    def result(self, label: Tensor) -> ClassProbabilities:
        """Return the gathered fields, of predictions whose ``(M,)`` true classes are these."""
        num_classes = len(self._sums)
        klass, prob, is_label = (torch.cat(parts).cpu() for parts in zip(*self._parts, strict=True))
        listed = torch.bincount(klass, weights=prob.double(), minlength=num_classes)
        return ClassProbabilities(
            self.floor,
            len(label),
            torch.bincount(label.cpu(), minlength=num_classes),
            (self._sums.cpu() - listed).clamp_(min=0),
            klass,
            prob,
            is_label,
        )
