"""Base of all scalings of logits, and the one fit: a temperature, then a penalised likelihood."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq, minimize
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmcalib import __version__
from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.predictions.arrays import (
    check_class_axis,
    labelled_rows,
    mark_masked,
    tensor_of,
    valid_labels,
    without_class_axis,
)
from mmcalib.tensors import SUM_TOLERANCE, at_least_single, check_finite, check_range

# Where a temperature ends that the data do not determine, as separable logits do not.
BOUNDS = (0.01, 100.0)
# Standard errors by which the NLL must fall as 1/T leaves 0, where a temperature may be above 100.
INFORMATIVE = 2.0
# Fewer groups tell no two standard errors, or hardly.
TELLING_GROUPS = 10
# Of the logarithm of 1/T, in a search beyond the bounds.
FARTHER = math.log(100)
# So many logits of a sigmoid may lie in [0, 1] by chance.
FEW_OF_A_SIGMOID = 10
# What is multiplied with logits, and so is fitted in units of 1/T, as penalties are.
SLOPES = ('scale', 'matrix', 'rise', 'fall')
# Logits worked on together: a temperature of 200,000 × 21 takes 0.55 s, of all at once 1.2.
_PART_VALUES = 250_000


class LogitScaler(BaseEstimator):
    r"""Base class of the scalers.

    Logits are ``(N, K)`` or maps ``(N, K, *)``; with K = 1 they are those before a sigmoid.

    A method is what it learns (:attr:`learned`), where that starts (:meth:`start`), how it is
    applied (:meth:`apply`) and what speaks against it (:meth:`cost`). With T the temperature of
    the least NLL, :meth:`fit` minimises by L-BFGS-B and autograd

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i + \mathrm{cost}

    with the number of effective predictions, see :func:`effective_number`. Computed in float64.

    Attributes:
        num_logits_: K of the logits that it was fitted to.
        num_predictions_: N.
        num_effective_: The number of effective predictions.
    """

    method: str
    # What is learned, without the underscore, and how many axes it has.
    learned: Mapping[str, int]
    # The heads whose logits it takes: those of a sigmoid (K = 1) are of two classes.
    heads: tuple[str, ...] = ('softmax', 'sigmoid')
    # Whether no prediction can become another class, whatever is learned; whether a linear layer
    # can absorb it; whether each class then has a scale and a shift of its own, so that the layer
    # needs a bias, and classes that all see the same features; whether predictions count by their
    # predicted class, each with its own effective number.
    keeps_argmax = affine = per_class = by_class = False
    # Of what is fitted: the least and the largest value, by name.
    bounds: Mapping[str, tuple[float, float]] = {}
    # Of each option: what returns its value, or raises an error that names it.
    checks: Mapping[str, Callable[[str, Any], Any]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an option is checked, whether the constructor or a user sets it."""
        check = self.checks.get(name)
        super().__setattr__(name, value if check is None else check(name, value))

    def start(self, num_logits: int) -> dict[str, Tensor]:
        """Return what is fitted after the temperature, in units of 1/T, as it changes nothing."""
        return {}

    def apply(self, logits: Tensor, **learned: Tensor) -> Tensor:
        """Return scaled logits ``(N, K, *)`` with what was learned, in the precision of both.

        It reads no state but options, so that a model can run it with tensors of its own.
        """
        raise NotImplementedError

    def learn(self, temperature: float, **fitted: Tensor) -> dict[str, Tensor]:
        """Return what :meth:`apply` takes, out of what was fitted in units of 1/T."""
        return {k: v / temperature if k in SLOPES else v for k, v in fitted.items()}

    def cost(self, **fitted: Tensor) -> Tensor | float:
        """Return what is added to the summed NLL of the effective predictions."""
        return 0.0

    def targets(self, labels: Tensor, number: float) -> Tensor:
        """Return what the likelihood is of: the labels ``(M,)``, or probabilities ``(M, 2)``."""
        return labels

    def fit(
        self, logits: Any, labels: Any, groups: Any = None, *, ignore_index: int | None = None
    ) -> LogitScaler:
        """Learn the scaling from held-out logits, and return self.

        Args:
            logits: ``(N, K)`` array, tensor or list of raw logits, not of probabilities, or maps
                ``(N, K, *)``; K = 1 for a binary classifier that ends in a sigmoid.
            labels: ``(N,)`` or ``(N, *)`` true classes, integers or booleans.
            groups: ``(N,)`` numbers or names: rows of the same one, such as the pixels of an
                image, are not independent. None if every row is a group of its own; the pixels of
                a map are always of one group.
            ignore_index: Label of what to leave out, such as mmsegmentation's 255. None leaves
                nothing out.

        Warns:
            UserWarning: If the logits look like probabilities, or the temperature is at its bound.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If logits are NaN or infinite, labels are out of range, the shapes do not
                fit, the method does not take such a head, or the data leave the scaling
                undetermined.
        """
        logits, labels = mark_masked(logits, labels)
        # Where a caller has turned gradients off, those of the likelihood are still needed.
        with torch.inference_mode(False), torch.enable_grad():
            values = tensor_of('logits', logits)
            self.check_head(values)
            rows = rows_of(values, labels, groups, ignore_index)
            if 'shift' in self.learned and not self.by_class and not (rows.y != rows.y[0]).any():
                raise UserError(
                    f'all labels have class {rows.y[0]}: a shift would learn to predict nothing '
                    'else. Use a temperature, or data with more classes'
                )
            warn_of_probabilities(rows.z)
            self._take(self._fit(rows))
            self.num_predictions_, self.num_logits_ = rows.z.shape
        return self

    def _take(self, learned: Mapping[str, Any]) -> LogitScaler:
        for name, value in learned.items():
            value = torch.as_tensor(value, dtype=torch.float64, device='cpu')
            setattr(self, f'{name}_', value if value.ndim else value.item())
        return self

    def _fit(self, rows: Rows) -> dict[str, Any]:
        """Return what is learned, by name."""
        temperature = best_temperature(rows)
        predicted = rows.predicted if self.by_class else None
        weights = rows.weights(1 / temperature, predicted)
        self.num_effective_ = weights.sum().item()
        return self.learn(temperature, **self._fitted(rows, temperature, weights))

    def _fitted(self, rows: Rows, temperature: float, weights: Tensor) -> dict[str, Tensor]:
        """Return what has the least penalised NLL of rows that count as much as their weights."""
        number = weights.sum().item()
        targets = self.targets(rows.y, number)

        def term(z: Tensor, y: Tensor, w: Tensor, **fitted: Tensor) -> Tensor:
            scaled = self.apply(z.double(), **self.learn(temperature, **fitted))
            nll = cross_entropy(with_other_class(scaled), y, reduction='none')
            return (nll * w).sum() / number

        terms = [partial(term, *part) for part in rows.parts(targets, weights)]
        terms.append(lambda **fitted: self.cost(**fitted) / number)
        start = self.start(rows.z.shape[1])
        return least_sum(terms, {k: v.to(rows.z.device) for k, v in start.items()}, self.bounds)

    def transform(self, logits: Any) -> Any:
        """Return the scaled logits: of the same shape, kind and precision, but never half.

        Their softmax (for K = 1, their sigmoid) is calibrated. Lists become arrays.

        Warns:
            UserWarning: If the logits look like probabilities.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        return self._applied(logits, lambda scaled: scaled)

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, shaped as the logits; two classes where K = 1."""
        return self._applied(logits, self.probabilities)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Return the probabilities of logits as they are."""
        return with_other_class(logits).softmax(dim=1)

    def _applied(self, logits: Any, then: Callable[[Tensor], Tensor]) -> Any:
        tensors = self.tensors
        values = logits if torch.is_tensor(logits) else tensor_of('logits', logits)
        self.check_head(values)
        if values.shape[1] != (known := vars(self).get('num_logits_', values.shape[1])):
            was = f'{type(self).__name__} was fitted to {known} logits of a prediction'
            raise ValueError(f'{was}, got {tuple(values.shape)}')
        warn_of_probabilities(values, stacklevel=4)
        learned = {name: value.to(values.device) for name, value in tensors.items()}
        # Rounded at the end: of large logits, single precision would lose the differences.
        scaled = self.apply(values.double(), **learned) if values.numel() else values.double()
        found = then(scaled)
        if values.is_floating_point():
            found = found.to(at_least_single(values).dtype)
        return found if torch.is_tensor(logits) else found.numpy()

    def fit_confidence(self, conf: Any, correct: Any, groups: Any = None) -> LogitScaler:
        """Learn to map a bare confidence to how often it is right, and return self.

        Its log-odds are the one logit that is scaled, as of a classifier of right and wrong.

        Args:
            conf: ``(N,)`` from 0 to 1, of any origin: a detector, a language model, a person.
            correct: ``(N,)`` booleans.
            groups: See :meth:`fit`.

        Raises:
            ValueError: For confidences outside [0, 1], and as :meth:`fit` does.
        """
        conf, correct = mark_masked(conf, correct)
        return self.fit(odds_of(conf), correct, groups)

    def confidence(self, conf: Any) -> Any:
        """Return calibrated confidences, of the same kind, after :meth:`fit_confidence`."""
        found = self._of_odds(odds_of(conf)).to(at_least_single(tensor_of('conf', conf)).dtype)
        return found if torch.is_tensor(conf) else found.numpy()

    def _of_odds(self, odds: Tensor) -> Tensor:
        return self.predict_proba(odds)[:, 1]

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for logits of a shape or head that it does not take."""
        shape = tuple(logits.shape)
        if logits.ndim < 2:
            raise ValueError(f'logits must be (N, K) or maps (N, K, *), got {shape}')
        if 'softmax' not in self.heads and shape[1] > 2:
            wanted = f'{type(self).__name__} takes logits of two classes, (N, 1) or (N, 2)'
            raise UserError(f'{wanted}, got {shape}; use a temperature')

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What was learned, as float64 tensors.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        check_is_fitted(self, [f'{name}_' for name in self.learned])
        values = {name: getattr(self, f'{name}_') for name in self.learned}
        return {
            name: torch.as_tensor(v, dtype=torch.float64, device='cpu')
            for name, v in values.items()
        }

    @property
    def parameters(self) -> dict:
        """What was learned, as plain numbers and lists."""
        return {name: value.tolist() for name, value in self.tensors.items()}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **options: Any) -> LogitScaler:
        """Return a fitted scaler out of its :attr:`parameters`.

        Args:
            parameters: Numbers, lists or tensors by name.
            options: As it was made with.

        Raises:
            ValueError: If they are not what the method learns.
        """
        cls.check_learned({name: torch.as_tensor(v) for name, v in parameters.items()})
        return cls(**options)._take(parameters)

    @classmethod
    def check_learned(cls, tensors: Mapping[str, Tensor]) -> None:
        """Raise a ValueError for tensors that are not what the method learns, by name and axes."""
        found = {name: value.ndim for name, value in tensors.items()}
        if found != cls.learned:
            raise ValueError(f'{cls.method} learns (axes) {cls.learned}, got {found}')

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which :func:`mmcalib.posthoc.load_scaler` reads.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        content = {
            'method': self.method,
            'options': self.get_params(),
            'parameters': self.parameters,
            'num_logits': self.num_logits_,
        }
        write_scaler(path, content)


def write_scaler(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write what :func:`mmcalib.posthoc.load_scaler` reads to a JSON file, with the version."""
    text = json.dumps({**content, 'version': __version__}) + '\n'
    with whole_file(path) as temporary:
        Path(temporary).write_text(text, encoding='utf-8')


class Rows(NamedTuple):
    """Predictions to fit to, on one device.

    Attributes:
        z: ``(M, K)`` logits.
        y: ``(M,)`` int64 labels.
        groups: ``(M,)`` int64; rows of the same one are not independent.
    """

    z: Tensor
    y: Tensor
    groups: Tensor

    @property
    def predicted(self) -> Tensor:
        """The predicted class of each row."""
        return with_other_class(self.z).argmax(dim=1)

    def parts(self, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """Yield logits with what else there is of each row, so few that a cache holds them."""
        size = max(_PART_VALUES // self.z.shape[1], 1)
        return zip(*(values.split(size) for values in (self.z, *others)), strict=True)

    def slopes(self, beta: float) -> Tensor:
        """Return :func:`nll_slopes` ``(M,)`` of all rows."""
        return torch.cat([nll_slopes(z, y, beta) for z, y in self.parts(self.y)])

    def curvatures(self, beta: float) -> Tensor:
        """Return :func:`nll_curvatures` ``(M,)`` of all rows."""
        return torch.cat([nll_curvatures(z, beta) for (z,) in self.parts()])

    def weights(self, beta: float, classes: Tensor | None = None) -> Tensor:
        """Return how many effective predictions each row counts as, by the slopes at 1/T = beta.

        Args:
            beta: 1/T.
            classes: ``(M,)``; rows of each one are effective for themselves.
        """
        slopes = self.slopes(beta)
        weights = torch.empty_like(slopes)
        classes = torch.zeros_like(self.y) if classes is None else classes
        for number in classes.unique():
            own = classes == number
            weights[own] = effective_number(slopes[own], self.groups[own]) / own.sum()
        return weights

    def only(self, kept: Tensor) -> Rows:
        """Return the rows of a mask ``(M,)``."""
        return Rows(*(values[kept] for values in self))


def rows_of(logits: Any, labels: Any, groups: Any = None, ignore_index: int | None = None) -> Rows:
    """Return what is to be fitted, see :meth:`LogitScaler.fit`."""
    logits, labels = tensor_of('logits', logits), tensor_of('labels', labels)
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f'labels must be integers, got {labels.dtype}')
    labels = without_class_axis(logits, labels.long().to(logits.device))
    check_class_axis(logits)
    z, y = labelled_rows('logits', logits, labels, ignore_index)
    if z.is_inference():
        z = z.clone()  # autograd does not take tensors of inference mode
    if y.is_inference():
        y = y.clone()
    # The pixels of a map are no independent predictions.
    groups = np.arange(len(labels)) if groups is None else groups
    groups = groups.cpu() if torch.is_tensor(groups) else groups
    number = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
    if len(number) != len(labels):
        raise ValueError(f'groups must be ({len(labels)},), one for each row or map')
    number = number.to(labels.device).view(-1, *[1] * (labels.ndim - 1))
    groups = number.expand(labels.shape)[valid_labels(labels, ignore_index)]
    if not z.numel():
        raise UserError(f'there is nothing to fit: no prediction of {tuple(logits.shape)} counts')
    check_finite(z, 'logits')
    return Rows(z, y, groups)


def best_temperature(rows: Rows) -> float:
    """Return the temperature of the least NLL, which is convex in 1/T.

    Without a wrong prediction, or without information in the logits, there is none: then it is the
    bound on that side.

    Warns:
        UserWarning: If it is a bound.
    """
    if not any(gaps_to_top(z)[0].any() for (z,) in rows.parts()):
        raise UserError('the logits of each row are all equal: no temperature changes them')

    def slope(log_beta: float) -> float:
        return rows.slopes(math.exp(log_beta)).mean().item()

    # The slope in 1/T is below 0 at `low` and above 0 at `high`.
    high, low = (-math.log(bound) for bound in BOUNDS)
    bound, reason = None, ''
    if slope(high) <= 0:
        if any_wrong(rows):
            high = _step_until(lambda log_beta: slope(log_beta) > 0, high, FARTHER)
        else:
            bound, reason = BOUNDS[0], 'no prediction is wrong, so nothing limits the confidence'
    elif slope(low) >= 0:
        if information(rows) > INFORMATIVE:
            low = _step_until(lambda log_beta: slope(log_beta) < 0, low, -FARTHER)
        else:
            bound, reason = BOUNDS[1], 'the logits carry almost no information about the labels'
    if bound is None:
        return math.exp(-brentq(slope, low, high, xtol=1e-10))
    warnings.warn(f'the temperature reached its bound of {bound:.4g}: {reason}', stacklevel=5)
    return bound


def _step_until(is_beyond: Callable[[float], bool], start: float, step: float) -> float:
    """Return the first of start + step, start + 2 step, … beyond what is searched."""
    while not is_beyond(start := start + step):
        pass
    return start


def any_wrong(rows: Rows) -> bool:
    """Return whether any label has a lower logit than another class."""
    return any(bool(gaps_to_top(z)[0].gather(1, y[:, None]).any()) for z, y in rows.parts(rows.y))


def information(rows: Rows) -> float:
    r"""Return by how many standard errors the NLL falls as 1/T leaves 0, over independent groups.

    .. math:: -\sum_g S_g \Big/ \sqrt{\sum_g S_g^2}

    with the sum :math:`S_g` of the slopes of a group's NLL in 1/T, at 1/T = 0. Logits that say
    nothing about the labels have about 0 ± 1; those of other classes than the labels' are negative.
    G groups give at most the square root of G, so of fewer than ten each row counts for itself.

    Source: the score test with a robust variance, Boos, The American Statistician, 1992.
    """
    sums = rows.slopes(0.0)
    by_group = group_sums(sums, rows.groups)
    if len(by_group) >= TELLING_GROUPS:
        sums = by_group
    spread = sums.square().sum().sqrt().item()
    return -sums.sum().item() / spread if spread else 0.0


def nll_slopes(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return the derivative ``(M,)`` of each row's NLL in 1/T, at 1/T = `beta`.

    It is the mean of the logits under the softmax less the true class's logit.
    """
    gaps = double_gaps(logits)
    mean = (gaps * beta).softmax(dim=1).mul_(gaps).sum(dim=1)
    return mean - gaps.gather(1, labels[:, None])[:, 0]


def nll_curvatures(logits: Tensor, beta: float) -> Tensor:
    """Return the second derivative ``(M,)`` of each row's NLL in 1/T, at 1/T = `beta`.

    It is the variance of the logits under the softmax.
    """
    gaps = double_gaps(logits)
    probs = (gaps * beta).softmax(dim=1)
    mean = (probs * gaps).sum(dim=1, keepdim=True)
    return (probs * (gaps - mean).square()).sum(dim=1)


def double_gaps(logits: Tensor) -> Tensor:
    """Return logits ``(M, K)`` less the highest of each row, in float64; K = 1 counts as (0, z)."""
    logits = with_other_class(logits).double()
    return logits - logits.amax(dim=1, keepdim=True)


def effective_number(slopes: Tensor, groups: Tensor) -> float:
    r"""Return how many independent rows would determine a parameter as well as dependent ones.

    .. math:: N_\mathrm{eff} = N \sum_i s_i^2 \Big/ \sum_g \Big(\sum_{i \in g} s_i\Big)^2

    with the slope :math:`s_i` of each row's NLL in the parameter, less their mean: the ratio of the
    variance that independent rows would have to that of independent groups. It is N divided by the
    design effect of cluster sampling.

    Source: Kish, Survey Sampling, 1965; the variances are those of White, 1980, and Liang and
    Zeger, 1986.

    Args:
        slopes: ``(N,)``.
        groups: ``(N,)`` integers, the image of each row.

    Returns:
        From 1 to N.
    """
    slopes = slopes - slopes.mean()
    independent, sums = slopes.square().sum().item(), group_sums(slopes, groups)
    if len(sums) in (1, len(slopes)) or independent == 0:
        return float(len(sums))
    found = len(slopes) * independent / sums.square().sum().item()
    return min(max(found, 1.0), float(len(slopes)))


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum of ``(N,)`` values for each group, in the order of the groups' numbers."""
    index = groups.unique(return_inverse=True)[1].to(values.device)
    return values.new_zeros(int(index.max()) + 1).index_add_(0, index, values)


def least_sum(
    terms: Sequence[Callable[..., Tensor | float]],
    start: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[float, float]],
) -> dict[str, Tensor]:
    """Return the named tensors of the least sum of terms, by L-BFGS-B and autograd.

    Args:
        terms: Functions of the tensors; one after the other, so that one is in memory.
        start: The tensors to start from.
        bounds: The least and the largest value, by name.
    """
    sizes = [value.numel() for value in start.values()]
    flat = torch.cat([value.flatten() for value in start.values()]).double()

    def unpacked(values: Tensor) -> dict[str, Tensor]:
        parts = zip(start.items(), values.split(sizes), strict=True)
        return {name: part.view(value.shape) for (name, value), part in parts}

    def objective(given: np.ndarray) -> tuple[float, np.ndarray]:
        leaf, total = torch.tensor(given, device=flat.device, requires_grad=True), 0.0
        for term in terms:
            value = term(**unpacked(leaf))
            if torch.is_tensor(value):
                value.backward()
                total += value.item()
        return total, leaf.grad.cpu().numpy()

    limits = [bounds.get(name, (None, None)) for name, v in start.items() for _ in range(v.numel())]
    until = {'maxiter': 1000, 'maxfun': 2000, 'ftol': 1e-13, 'gtol': 1e-7}
    how = {'jac': True, 'method': 'L-BFGS-B', 'bounds': limits, 'options': until}
    found = minimize(objective, flat.cpu().numpy(), **how)
    return unpacked(torch.tensor(found.x, device=flat.device))


def odds_of(conf: Any) -> Tensor:
    """Return the log-odds ``(N, 1)`` of confidences, in float64; those of 0 and 1 are finite."""
    values = tensor_of('conf', conf)
    check_range(values, 'conf')
    least = torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps / 2
    return values.double().clamp(least, 1 - least).logit()[:, None]


def with_other_class(logits: Tensor) -> Tensor:
    """Return ``(M, K, *)`` logits as they are, and ``(M, 1, *)`` ones with a 0 for the other class.

    The softmax over (0, z) is the sigmoid of z.
    """
    if logits.shape[1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def gaps_to_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits less the highest, differences that keep their digits, and the predicted class.

    Args:
        logits: ``(N, K, *)``; with K = 1 those of a sigmoid, which count as (0, z).

    Returns:
        ``(N, K, *)``, at most 0, two classes where K = 1; ``(N, *)`` int64, the first of a tie.
    """
    logits = with_other_class(logits)
    return logits - logits.amax(dim=1, keepdim=True), logits.argmax(dim=1)


def of_given_head(scaled: Tensor, logits: Tensor) -> Tensor:
    """Return logits of two or more classes for the head that `logits` are of: one of a sigmoid."""
    return scaled if logits.shape[1] > 1 else scaled[:, 1:] - scaled[:, :1]


def warn_of_probabilities(logits: Tensor, *, stacklevel: int = 3) -> None:
    """Warn if all rows lie in [0, 1] and sum to 1, as a softmax's do, or are those of a sigmoid."""
    if not logits.numel() or logits.min() < 0 or not logits.max() <= 1:
        return
    single, total = logits.shape[1] == 1, at_least_single(logits).sum(dim=1)
    if len(logits) >= FEW_OF_A_SIGMOID if single else (total - 1).abs().max() < SUM_TOLERANCE:
        warnings.warn(
            'the logits look like probabilities: all lie in [0, 1]. Give raw logits, or the '
            'logarithm of the probabilities (for K = 1, their log-odds)',
            stacklevel=stacklevel,
        )
