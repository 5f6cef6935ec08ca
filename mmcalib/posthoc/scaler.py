"""Base of all scalings of logits: options, the fit, the map and the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmcalib.errors import UserError, warn
from mmcalib.files import write_text
from mmcalib.posthoc.fit_rows import effective_weights, logits_for_passes, read_rows, split_rows
from mmcalib.posthoc.logits import (
    LEAST_CONF,
    confidence_log_odds,
    log_odds,
    warn_if_probabilities,
    with_other_class,
)
from mmcalib.posthoc.masked_classes import check_no_masked_class
from mmcalib.posthoc.minimize import minimize_sum
from mmcalib.posthoc.temperature_search import best_temperature
from mmcalib.predictions.arrays import as_tensor, as_tensors
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.tensors import at_least_single, on_float64_device
from mmcalib.version import __version__

# Parameters by which logits are multiplied; they are fitted in units of 1/T, as penalties are.
FACTORS = ('scale', 'matrix', 'rise', 'fall')
# A text lists so many values of a parameter.
MOST_VALUES = 3
# The decrease of the mean NLL, relative to it, that ends a fit. In float32 smaller ones are noise:
# the NLL of 200,000 × 21 logits is then within 1e-6 of that of float64, in a quarter of the time.
FLOAT64_TOLERANCE = 1e-13
FLOAT32_TOLERANCE = 1e-8
# Fewer logits take no time in float64, and hardly determine some parameters.
FEW_LOGITS = 50_000
# The least curvature of the mean NLL that sets the unit of a parameter.
LEAST_CURVATURE = 1e-6


@dataclass(frozen=True)
class FitStart:
    """Where a fit starts: the optimum is the same, but nearer.

    Attributes:
        temperature: The temperature from which that of the least NLL is searched.
        tensors: The tensors to fit, in units of 1/T, by name; None for those that change nothing.
    """

    temperature: float = 1.0
    tensors: Mapping[str, Tensor] | None = None


class LogitScaler(BaseEstimator):
    r"""Base class of the scalers.

    Logits are ``(N, K)`` or maps ``(N, K, *)``; with K = 1 they are those before a sigmoid.

    A method has parameters (:attr:`learned`), a start of their fit (:meth:`start`), a map of logits
    (:meth:`apply`) and penalties of changes from the start (:meth:`penalties`). With T the
    temperature of the least NLL, :meth:`fit` minimises by L-BFGS-B and autograd

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i + \mathrm{penalty}

    with the number of effective predictions, see
    :func:`~mmcalib.posthoc.fit_rows.effective_number`. Computed in float64.

    Attributes:
        num_logits_: K of the logits that it was fitted to.
        num_predictions_: N.
        num_effective_: The number of effective predictions.
    """

    method: str
    # The learned parameters, without the underscore of their attributes, and their number of axes.
    learned: Mapping[str, int]
    # The heads whose logits the method takes: those of a sigmoid (K = 1) are of two classes.
    heads: tuple[str, ...] = ('softmax', 'sigmoid')
    # Whether no prediction can become another class, whatever is learned.
    keeps_argmax = False
    # Whether the map may rise between two numbers that are one in single precision.
    has_near_steps = False
    # Whether a linear layer can absorb the scaling.
    affine = False
    # Whether a masked class, of a logit of -inf or -1e9, leaves the other classes as they are.
    takes_masked_classes = True
    # Whether each class has a scale and a shift of its own, so that the layer that absorbs them
    # needs a bias, and classes that all see the same features.
    per_class = False
    # The optimum of the last fit, at which a fit to similar rows starts.
    optimum: FitStart | None = None
    # Whether the fit begins with the temperature of the least NLL.
    starts_at_temperature = True
    # Whether the predictions of each predicted class have an effective number of their own.
    by_class = False
    # The least and the largest value of fitted tensors, by name.
    bounds: Mapping[str, tuple[float, float]] = {}
    # The least value of a bare confidence; None for a file of 0.4.0, where the type of float told.
    least_conf: float | None = LEAST_CONF
    # For each option a function that returns its value, or raises an error that names it.
    checks: Mapping[str, Callable[[str, Any], Any]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an option is checked, whether the constructor or a user sets it."""
        check = self.checks.get(name)
        super().__setattr__(name, value if check is None else check(name, value))

    def start(self, num_logits: int) -> dict[str, Tensor]:
        """Return the tensors to fit, in units of 1/T, with values that change nothing."""
        tensors = {}
        for name, num_axes in self.learned.items():
            if name == 'matrix':
                tensors[name] = torch.eye(num_logits, device='cpu')
            else:
                value = 0.0 if name == 'shift' else 1.0
                tensors[name] = torch.full([num_logits] * num_axes, value, device='cpu')
        return tensors

    def apply(self, logits: Tensor, **learned: Tensor) -> Tensor:
        """Return scaled logits ``(N, K, *)``, in the precision of logits and parameters.

        It reads no state but options, so that a model can run it with tensors of its own.

        Args:
            logits: ``(N, K, *)``.
            **learned: The learned parameters.
        """
        raise NotImplementedError

    def learned_parameters(self, temperature: float, **fitted: Tensor) -> dict[str, Tensor]:
        """Return the parameters of :meth:`apply` for tensors that are fitted in units of 1/T."""
        parameters = {}
        for name, value in fitted.items():
            parameters[name] = value / temperature if name in FACTORS else value
        return parameters

    def penalties(self, num_logits: int) -> dict[str, Tensor | float]:
        """Return the penalty of a squared change of each tensor from the start, by name.

        It is a number, or one for each element. The sum of all is added to the summed NLL of the
        effective predictions.
        """
        return {}

    def curvatures(self) -> dict[str, Tensor]:
        """Return the approximate second derivative of the summed NLL in each tensor, by name.

        With that of the penalty, it is the unit of the search; a tensor that is left out has 1.
        """
        return {}

    def targets(self, labels: Tensor, num_effective: float) -> Tensor:
        """Return the targets of the likelihood: labels ``(M,)``, or probabilities ``(M, 2)``."""
        return labels

    def fit(
        self, logits: Any, labels: Any, groups: Any = None, *, ignore_index: int | None = None
    ) -> LogitScaler:
        """Learn the scaling from held-out logits, and return self.

        Args:
            logits: ``(N, K)`` array, tensor or list of raw logits, not of probabilities, or maps
                ``(N, K, *)``; K = 1, or ``(N,)``, for a binary classifier that ends in a sigmoid.
            labels: ``(N,)`` or ``(N, *)`` true classes, integers or booleans.
            groups: ``(N,)`` numbers or names: rows of the same one, such as the pixels of an
                image, are not independent. None if every row is a group of its own; the pixels of
                a map are always of one group.
            ignore_index: Label of predictions that are left out, such as mmsegmentation's 255. None
                leaves nothing out.

        Warns:
            UserWarning: If the logits look like probabilities, the temperature is at its bound, or
                the scaling reverses the order of the predictions of two classes.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If logits are NaN or infinite, labels are out of range, the shapes do not
                fit, the method does not take such a head or masked classes, or the data leave the
                scaling undetermined.
        """
        rows = self.fit_unchecked(logits, labels, groups, ignore_index)
        problem = self.order_problem(rows.logits, rows.labels)
        if problem is not None:
            warn(problem)
        return self

    def fit_unchecked(
        self, logits: Any, labels: Any, groups: Any, ignore_index: int | None = None
    ) -> ImagePredictions:
        """Learn as :meth:`fit` does, but for its check of the order, and return the rows."""
        values, labels, valid = as_tensors('logits', logits, labels)
        # The likelihood needs gradients, also where a caller has turned them off.
        with torch.inference_mode(False), torch.enable_grad():
            self.check_head(values[:, None] if values.ndim == 1 else values)
            rows = read_rows(values, labels, groups, ignore_index, valid)
            warn_if_probabilities(rows.logits)
            self.fit_rows(rows)
        return rows

    def order_problem(self, logits: Tensor, labels: Tensor) -> str | None:
        """Return what is wrong where scaled log-odds of two classes fall, or None.

        Few labels of a rare class give such a scaling by chance.

        Args:
            logits: ``(M, K)`` logits of the fit; more than two classes have no such order.
            labels: ``(M,)`` their labels.
        """
        if logits.shape[1] > 2:
            return None
        odds = log_odds(logits)[:, 0]
        lowest = odds.argmin()
        highest = odds.argmax()
        if odds[lowest] == odds[highest]:
            return None
        ends = logits[torch.stack([lowest, highest])].cpu().double()
        scaled_odds = log_odds(self.apply(ends, **self.tensors))
        if scaled_odds[1] > scaled_odds[0]:
            return None
        num_positive = int((labels == 1).sum())
        rare_class = 1 if 2 * num_positive <= len(labels) else 0
        return (
            f'{self.method} ({self.parameter_text()}) reverses or levels the order of predictions, '
            f'with {num_positive:,} of {len(labels):,} labels of class 1: calibrate on more labels '
            f'of class {rare_class}, or, if the order is certain, exchange the classes: P(y = 0) '
            'may have been given for P(y = 1)'
        )

    def fit_rows(self, rows: ImagePredictions, start: FitStart | None = None) -> LogitScaler:
        """Learn the scaling from rows that :func:`read_rows` returns, and return self.

        Args:
            rows: The predictions.
            start: Where the fit starts; None for a scaling that changes nothing.

        Raises:
            UserError: If they leave the scaling undetermined.
        """
        first_label = rows.labels[0]
        if self.has_shift and not (rows.labels != first_label).any():
            raise UserError(
                f'all labels have class {first_label}: a shift would learn to predict nothing '
                'else. Use a temperature, or data with more classes'
            )
        if not self.takes_masked_classes:
            check_no_masked_class(rows.logits, self.method)
        self._set_parameters(self._fit(rows, start or FitStart()))
        self.num_predictions_ = len(rows)
        self.num_logits_ = rows.logits.shape[1]
        return self

    def fit_kept_rows(
        self,
        rows: ImagePredictions,
        is_kept: Tensor,
        temperature: float,
        similar: LogitScaler | None = None,
    ) -> LogitScaler:
        """Learn the scaling from some rows, whose temperature of the least NLL is known.

        Args:
            rows: All predictions.
            is_kept: A mask of the rows to fit to, ``(M,)``.
            temperature: The temperature of the least NLL of these.
            similar: A scaler of the same method that was fitted to nearly the same rows, at whose
                optimum this fit starts; None if there is none.
        """
        tensors = None if similar is None else similar.optimum.tensors
        return self.fit_rows(rows.select(is_kept), FitStart(temperature, tensors))

    def _set_parameters(self, parameters: Mapping[str, Any]) -> None:
        tensors = {}
        for name, value in parameters.items():
            tensors[name] = torch.as_tensor(value, dtype=torch.float64, device='cpu')
        self.check_learned(tensors)
        for name, tensor in tensors.items():
            setattr(self, f'{name}_', tensor if tensor.ndim else tensor.item())

    def _fit(self, rows: ImagePredictions, start: FitStart) -> dict[str, Any]:
        """Return the learned parameters, by name."""
        temperature = best_temperature(rows, start=start.temperature)
        weights = effective_weights(rows, 1 / temperature, by_predicted_class=self.by_class)
        self.num_effective_ = weights.sum().item()
        tensors = start.tensors or self.start(rows.logits.shape[1])
        fitted = self._minimize_nll(rows, temperature, weights, tensors)
        self.optimum = FitStart(temperature, fitted)
        return self.learned_parameters(temperature, **fitted)

    def _minimize_nll(
        self,
        rows: ImagePredictions,
        temperature: float,
        weights: Tensor,
        start: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return the fitted tensors with the least penalised NLL.

        Args:
            rows: The predictions.
            temperature: T, whose inverse is the unit of factors.
            weights: ``(M,)`` effective predictions that each row counts as.
            start: The tensors to start from.
        """
        num_effective = weights.sum().item()
        targets = self.targets(rows.labels, num_effective)

        def mean_nll(
            part_logits: Tensor, part_targets: Tensor, part_weights: Tensor, **fitted: Tensor
        ) -> Tensor:
            parameters = self.learned_parameters(temperature, **fitted)
            parameters = {name: value.to(part_logits.dtype) for name, value in parameters.items()}
            scaled = with_other_class(self.apply(part_logits, **parameters))
            if part_targets.is_floating_point():
                part_targets = part_targets.to(scaled.dtype)
            nll = cross_entropy(scaled, part_targets, reduction='none')
            return (nll.double() * part_weights).sum() / num_effective

        def mean_penalty(**fitted: Tensor) -> Tensor | float:
            total = 0.0
            for name, penalty in penalties.items():
                total += (penalty * (fitted[name] - neutral[name]).square()).sum()
            return total / num_effective

        logits = rows.logits
        if logits.numel() < FEW_LOGITS:
            logits = logits.double()
        terms = []
        for part_logits, *part_columns in split_rows(logits, targets, weights):
            terms.append(partial(mean_nll, logits_for_passes(part_logits), *part_columns))
        terms.append(mean_penalty)
        neutral = on_device(self.start(logits.shape[1]), logits.device)
        penalties = on_device(self.penalties(logits.shape[1]), logits.device)
        start = on_device(start, logits.device)
        tolerance = FLOAT32_TOLERANCE if logits.dtype == torch.float32 else FLOAT64_TOLERANCE
        units = {}
        for name, curvature in self.curvatures().items():
            curvature = (curvature + 2 * penalties[name]) / num_effective
            # A penalty of 0 leaves no curvature for a class that is never predicted.
            units[name] = curvature.clamp(min=LEAST_CURVATURE).rsqrt()
        return minimize_sum(terms, start, self.bounds, units=units, tolerance=tolerance)

    def transform(self, logits: Any) -> Any:
        """Return the scaled logits: of the same shape, kind and precision, but never half.

        Their softmax (for K = 1, their sigmoid) is calibrated. Lists become arrays.

        Args:
            logits: As for :meth:`fit`.

        Warns:
            UserWarning: If the logits look like probabilities.

        Raises:
            NotFittedError: Before :meth:`fit`.
            ValueError: If the logits are of another shape than the fitted ones, or of -inf where
                the method takes no masked classes.
        """
        return self._scale(logits, lambda scaled: scaled)

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, shaped as the logits; two classes where K = 1.

        See :meth:`transform`.
        """
        return self._scale(logits, self.probabilities)

    def predict_kept(self, logits: Tensor) -> Tensor:
        """Return what :meth:`predict_proba` does for a few of the logits that were checked.

        One prediction may look like probabilities by chance, so it is not warned of.
        """
        return self._scale(logits, self.probabilities, may_be_probabilities=False)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Return the probabilities of logits as they are."""
        if logits.shape[1] == 1:  # A softmax of 0 and infinity would be NaN.
            return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
        return logits.softmax(dim=1)

    def _scale(
        self, logits: Any, convert: Callable[[Tensor], Tensor], *, may_be_probabilities: bool = True
    ) -> Any:
        """Return converted scaled logits, of the kind and the precision of the given logits."""
        learned = self.tensors
        values = logits if torch.is_tensor(logits) else as_tensor('logits', logits)
        # A row of K logits has one axis too, so only a scaling of one logit takes that.
        has_no_class_axis = values.ndim == 1 and vars(self).get('num_logits_') == 1
        if has_no_class_axis:
            values = values[:, None]
        self.check_head(values)
        num_logits = vars(self).get('num_logits_', values.shape[1])
        if values.shape[1] != num_logits:
            remedy = ''
            if num_logits == 1 and values.shape[1] == 2:
                remedy = ': give the log-odds of class 1 alone, log(p / (1 - p)) of P(y = 1)'
            elif num_logits == 2 and values.shape[1] == 1:
                remedy = ': give the logits of both classes, for log-odds z those are 0 and z'
            raise ValueError(
                f'{type(self).__name__} was fitted to {num_logits} logits of a prediction, got '
                f'{tuple(values.shape)}{remedy}'
            )
        if not self.takes_masked_classes and values.numel():
            check_no_masked_class(values, self.method)
        if may_be_probabilities:
            warn_if_probabilities(values)
        dtype = at_least_single(values).dtype if values.is_floating_point() else torch.float64
        values = on_float64_device(values)
        learned = {name: value.to(values.device) for name, value in learned.items()}
        # Rows are scaled in parts that fit a cache; maps are single images or small batches.
        parts = [part for (part,) in split_rows(values)] if values.ndim == 2 else [values]
        converted_parts = []
        for part in parts:
            scaled = self.apply(part.double(), **learned)
            # Rounded at the end: of large logits, single precision would lose the differences.
            converted_parts.append(convert(scaled).to(dtype))
        converted = torch.cat(converted_parts)
        if has_no_class_axis and converted.shape[1] == 1:  # Probabilities are of two classes.
            converted = converted[:, 0]
        return converted.to(logits.device) if torch.is_tensor(logits) else converted.numpy()

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
        conf, correct, valid = as_tensors('conf', conf, correct, 'correct')
        # The log-odds are computed here, so unlike in fit() they cannot be probabilities.
        with torch.inference_mode(False), torch.enable_grad():
            odds = confidence_log_odds(conf, self.least_conf)
            return self.fit_confidence_rows(read_rows(odds, correct, groups, valid=valid))

    def fit_confidence_rows(self, rows: ImagePredictions) -> LogitScaler:
        """Learn the scaling from rows whose one logit is the log-odds of a confidence."""
        return self.fit_rows(rows)

    def confidence(self, conf: Any) -> Any:
        """Return calibrated confidences, of the same kind, after :meth:`fit_confidence`."""
        odds = confidence_log_odds(conf, self.least_conf)
        calibrated = self._confidence_from_odds(odds)
        calibrated = calibrated.to(at_least_single(as_tensor('conf', conf)).dtype)
        return calibrated.to(conf.device) if torch.is_tensor(conf) else calibrated.numpy()

    def _confidence_from_odds(self, odds: Tensor) -> Tensor:
        return self._scale(odds, self.probabilities, may_be_probabilities=False)[:, 1]

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for logits of a shape or head that the method does not take."""
        shape = tuple(logits.shape)
        if logits.ndim < 2:
            raise ValueError(f'logits must be (N, K) or maps (N, K, *), got {shape}')
        if 'softmax' not in self.heads and shape[1] > 2:
            raise UserError(
                f'{type(self).__name__} takes logits of two classes, (N, 1) or (N, 2), got '
                f'{shape}; use a temperature'
            )

    @property
    def has_shift(self) -> bool:
        """Whether it shifts the log-odds of classes, whatever class is predicted."""
        return 'shift' in self.learned and not self.by_class

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Learned parameters by name, as float64 tensors.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        check_is_fitted(self, [f'{name}_' for name in self.learned])
        tensors = {}
        for name in self.learned:
            value = getattr(self, f'{name}_')
            tensors[name] = torch.as_tensor(value, dtype=torch.float64, device='cpu')
        return tensors

    @property
    def parameters(self) -> dict:
        """Learned parameters by name, as plain numbers and lists."""
        return {name: value.tolist() for name, value in self.tensors.items()}

    def shown_parameters(self) -> dict[str, Tensor]:
        """Return what text shows of the learned parameters, by name."""
        return self.tensors

    def parameter_text(self) -> str:
        """Return the learned parameters as a text, such as ``scale 0.62 to 0.81, shift 0.1``."""
        parts = [f'{name} {values_text(value)}' for name, value in self.shown_parameters().items()]
        return ', '.join(parts)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        options = super().__repr__(N_CHAR_MAX)
        is_fitted = all(hasattr(self, f'{name}_') for name in self.learned)
        return f'{options} with {self.parameter_text()}' if is_fitted else options

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **options: Any) -> LogitScaler:
        """Return a fitted scaler with given :attr:`parameters`.

        Args:
            parameters: Numbers, lists or tensors by name.
            **options: The options of the method.

        Raises:
            ValueError: See :meth:`check_learned`.
        """
        scaler = cls(**options)
        scaler._set_parameters(parameters)
        if cls.learned.get('shift') == 1:  # Each class has a shift of its own.
            scaler.num_logits_ = len(scaler.tensors['shift'])
        return scaler

    @classmethod
    def check_learned(cls, tensors: Mapping[str, Tensor]) -> None:
        """Raise a ValueError for tensors that are not parameters of the method.

        They have its names and numbers of axes and are finite; a temperature is above 0.
        """
        axes = {name: value.ndim for name, value in tensors.items()}
        if axes != cls.learned:
            raise ValueError(f'{cls.method} learns (axes) {cls.learned}, got {axes}')
        for name, value in tensors.items():
            wrong = value[~value.isfinite()]
            if len(wrong):
                raise ValueError(f'{name} must be finite, got {wrong[0].item()}')
            if name == 'temperature' and (value <= 0).any():
                raise ValueError(f'{name} must be above 0, got {value.min().item():.7g}')

    def save(self, path: str | Path, classes: Sequence[str] = ()) -> None:
        """Write it to a JSON file, which :func:`mmcalib.posthoc.load_scaler` reads.

        Args:
            path: The file.
            classes: Names of the classes, by which ``mmcalib measure --scaler`` finds columns.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        content = {
            'method': self.method,
            'options': self.get_params(),
            'parameters': self.parameters,
            'num_logits': vars(self).get('num_logits_'),
            'least_conf': self.least_conf,
        }
        write_scaler(path, content, classes)


def on_device(values: Mapping[str, Tensor | float], device: torch.device) -> dict[str, Tensor]:
    """Return numbers and tensors as float64 on a device."""
    tensors = {}
    for name, value in values.items():
        if not torch.is_tensor(value):  # A default device must not make it.
            value = torch.tensor(value, dtype=torch.float64, device='cpu')
        tensors[name] = value.to(device, torch.float64)
    return tensors


def values_text(values: Tensor) -> str:
    """Return a few values as they are, and of more the smallest and the largest."""
    values = values.flatten()
    if len(values) <= MOST_VALUES:
        return ', '.join(f'{value:.4g}' for value in values.tolist())
    return f'{values.min().item():.4g} to {values.max().item():.4g}'


def write_scaler(path: str | Path, content: Mapping[str, Any], classes: Sequence[str]) -> None:
    """Write what :func:`mmcalib.posthoc.load_scaler` reads to a JSON file, with the version."""
    names = {'classes': list(classes)} if classes else {}
    write_text(path, json.dumps({**content, **names, 'version': __version__}) + '\n')
