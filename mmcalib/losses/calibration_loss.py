"""The one call contract that mmpretrain heads and mmseg decode heads share."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.losses.value_and_gradient import weighted_sum, zero_unweighted
from mmcalib.misfits import refuse
from mmcalib.options import check_choice, check_integer, check_number
from mmcalib.tensors import SUM_TOLERANCE, TOLERANCE, can_read, check_labels, is_batched

# Four rows or more that sum to 1 are probabilities; fewer rows of logits may do so by chance.
LEAST_ROWS = 4
# A call gives these to the formula; its other keyword-only arguments are attributes of the loss.
CALL_ARGUMENTS = ('class_weight', 'neighbours', 'weight', 'over_ranks')
ANY_NUMBER = (0.0, float('inf'))
BOOLEANS = (True, False)


class CalibrationLoss(nn.Module):
    r"""Base of the losses: a loss per row that the heads of both toolboxes can call.

    A row is one sample of ``(N, K)`` logits or one pixel of ``(N, K, H, W)`` logits. A subclass
    gives a :attr:`formula` for the rows, whose keyword-only arguments with a default are options of
    the constructor; this class checks the call, leaves ignored rows out, weights and reduces:

    .. math:: L = \text{loss\_weight} \cdot \frac{\sum_{i\ \text{valid}} w_i \ell_i}{D},
        \qquad D = \text{avg\_factor, else the number of valid rows}

    Where the toolboxes' own losses differ: mmseg's ``CrossEntropyLoss`` divides by all rows,
    ignored ones too, unless ``avg_non_ignore=True``, and by the sum of class weights where those
    are given; mmpretrain's divides by N. Here ``class_weight`` scales the cross-entropy term of a
    row and never enters D.

    Args:
        class_weight: K weights of the cross-entropy term, one per class; or the path of a .json or
            .npy file with them, as in mmseg.
        ignore_index: Index label that takes no part. mmseg's heads pass theirs with every call,
            which wins over this one; PIDHead and DDRHead do not, so set 255 here for those.
        reduction: ``'mean'``, ``'sum'`` or ``'none'`` (a loss per row, in the target's shape).
        loss_weight: Factor of the result.
        loss_name: Key in mmseg's log. It must contain "loss", or mmengine would leave the term out
            of the gradient without a word.
        compile: Compute value and gradient in one kernel of ``torch.compile``: the first step of a
            shape takes seconds longer, the others are about as cheap as cross-entropy or cheaper.
            Without a working compiler the loss runs eagerly, with one warning. ``'none'`` is
            always eager.
        options: Options of the formula.

    Attributes:
        formula: ``formula(logits, target, *, class_weight, **options)`` returns the loss of every
            row in plain, differentiable operations.
        ranges: The least and the largest value of an option that is a number, by its name; 0 and
            infinity for an option that is not in it.
        choices: The values of an option of another type, by its name.
        soft_targets: Whether targets may be probabilities.

    Raises:
        TypeError: For an option of another name or type; a boolean is no number.
        ValueError: For an option outside its range.
    """

    formula: Callable[..., Tensor]
    ranges: Mapping[str, tuple[float, float]] = {}
    choices: Mapping[str, Sequence] = {}
    reductions = ('none', 'mean', 'sum')
    soft_targets = True
    loss_name = 'loss_calibration'
    defaults: Mapping[str, object] = {}
    _has_seen_logits = False

    def __init_subclass__(cls) -> None:
        """Give the constructor the options of the formula, with its defaults.

        Raises:
            TypeError: For a formula that does not take logits and target as an attribute of a loss.
        """
        arguments = []
        if hasattr(cls, 'formula'):
            check_formula(cls)
            for parameter in inspect.signature(cls.formula).parameters.values():
                is_keyword_only = parameter.kind is parameter.KEYWORD_ONLY
                if is_keyword_only and parameter.name not in CALL_ARGUMENTS:
                    arguments.append(parameter)
        # PyTorch 2.3 can compile a loop over a tuple, not over parameters.
        cls.arguments = tuple(parameter.name for parameter in arguments)
        options = {p.name: p for p in arguments if p.default is not p.empty}
        cls.defaults = {name: parameter.default for name, parameter in options.items()}
        ranges = {}
        choices = {}
        for name, default in cls.defaults.items():
            if isinstance(default, bool):
                choices[name] = BOOLEANS
            elif isinstance(default, float):
                ranges[name] = ANY_NUMBER
        cls.ranges = {**ranges, **cls.ranges}
        cls.choices = {**choices, **cls.choices}
        cls.__signature__ = constructor_signature(cls, options)

    def __init__(
        self,
        *,
        class_weight: Sequence[float] | str | os.PathLike | None = None,
        ignore_index: int = -100,
        reduction: str = 'mean',
        loss_weight: float = 1.0,
        loss_name: str | None = None,
        compile: bool = False,
        **options,
    ) -> None:
        super().__init__()
        try:
            self.__signature__.bind_partial(**options)
        except TypeError as error:  # An option does not exist.
            raise TypeError(f'{type(self).__name__}: {error}') from error
        self.loss_name = self.loss_name if loss_name is None else loss_name
        check_loss_name(self.loss_name)
        self.ignore_index = check_integer('ignore_index', ignore_index, least=-float('inf'))
        self.reduction = check_choice('reduction', reduction, self.reductions)
        self.loss_weight = check_number('loss_weight', loss_weight)
        self.compiled = check_choice('compile', compile, BOOLEANS)
        # It stays out of the state dict, since checkpoints of other losses must load.
        self.register_buffer('class_weight', class_weight_tensor(class_weight), persistent=False)
        for name, default in self.defaults.items():
            setattr(self, name, self.check_parameter(name, options.get(name, default)))
        self._scheduled_names = set()

    def check_parameter(self, name: str, value: object) -> object:
        """Return the value of an option, or raise an error if the option cannot have it."""
        if name in self.choices:
            return check_choice(name, value, self.choices[name])
        if name in self.ranges:
            least, most = self.ranges[name]
            return float(check_number(name, value, least=least, most=most))
        if isinstance(self.defaults[name], int):
            return check_integer(name, value)
        return value

    def set_parameters(self, **values: float) -> None:
        """Set parameters of :attr:`ranges`, as a schedule does."""
        for name, value in values.items():
            setattr(self, name, self.check_parameter(name, value))
            self._scheduled_names.add(name)

    def options(self) -> dict:
        """Return the arguments of the formula that are attributes of the loss."""
        options = {name: getattr(self, name) for name in self.arguments}
        if self.compiled:
            # A plain number is compiled in, so only those that a schedule changes are tensors: MbLS
            # at 4×21×256×256 takes 1.10 of cross-entropy's time with tensors and 0.78 without.
            for name in self._scheduled_names.intersection(options):
                options[name] = torch.tensor(options[name], dtype=torch.float64, device='cpu')
        return options

    def extra_repr(self) -> str:
        return ', '.join(f'{name}={getattr(self, name)!r}' for name in self.defaults)

    def forward(
        self,
        pred: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        avg_factor: float | Tensor | None = None,
        reduction_override: str | None = None,
        ignore_index: int | None = None,
        **unknown,
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            pred: Logits ``(N, K)`` or ``(N, K, H, W)``, the classes in the second axis. float16 and
                bfloat16 are computed in float32, float64 stays.
            target: Integer labels ``(N,)`` or ``(N, H, W)``, or probabilities in the shape of
                ``pred`` (Mixup, CutMix).
            weight: A weight per row, in the shape of the labels.
            avg_factor: Divisor of the sum under ``'mean'``; the number of valid rows if None.
            reduction_override: Replaces the reduction of the constructor for this call.
            ignore_index: Replaces the ignored label of the constructor for this call.
            unknown: Refused.

        Returns:
            A scalar, or one loss per row for ``'none'`` (0 where ignored). With every row ignored:
            0, which still has a gradient (of zeros).

        Raises:
            TypeError: For a `pred` or `target` that is no tensor, and for `unknown`.
            ValueError: If shapes do not fit, a label is neither in [0, K) nor the ignored one,
                probabilities are negative or do not sum to 1, or ``avg_factor`` comes with
                ``'sum'``. In a first call also if `pred` holds probabilities, or is ``(N, K, K)``
                of integer labels ``(N, K)``, of which no shape tells the axis of the classes.
            RuntimeError: Instead, for a target on a GPU or inside a compiled model. Inside
                ``torch.vmap``, nothing checks a target's values.
        """
        if unknown:
            raise TypeError(
                f'{type(self).__name__} takes no {", ".join(unknown)}: for the Trainer of '
                'transformers, give compute_loss_func=lambda outputs, labels, num_items_in_batch='
                'None: loss(outputs.logits, labels, avg_factor=num_items_in_batch)'
            )
        reduction = check_choice('reduction', reduction_override or self.reduction, self.reductions)
        if avg_factor is not None and reduction == 'sum':
            raise ValueError("avg_factor divides a mean; it cannot be used with reduction='sum'")
        target, valid, options = self.prepare_call(pred, target, weight, ignore_index)
        self.check_first_call(pred, target)
        row_weight = self.row_weights(valid, pred, reduction, avg_factor)
        if weight is not None:
            row_weight = row_weight * weight.to(row_weight.dtype)
        return self.weighted_loss(pred, target, row_weight, options, reduction)

    def weighted_loss(self, pred, target, row_weight, options, reduction) -> Tensor:
        """Return the sum of the weighted row losses; for ``'none'``, each of them."""
        if reduction == 'none':
            rows = self.formula(zero_unweighted(pred, row_weight), target, **options)
            return rows * row_weight
        return weighted_sum(self.formula, pred, target, row_weight, options, self.compiled)

    def row_weights(self, valid: Tensor, pred: Tensor, reduction: str, avg_factor=None) -> Tensor:
        """Return the factor of every row in the result, 0 for an ignored one."""
        row_weight = valid.to(torch.promote_types(pred.dtype, torch.float32))
        if reduction == 'mean':
            if avg_factor is None:
                avg_factor = row_weight.sum().clamp(min=1)
            elif isinstance(avg_factor, Tensor):
                avg_factor = scalar_tensor('avg_factor', avg_factor).to(row_weight.dtype)
            # Without a valid row avg_factor may be 0, and 0 / 0 is NaN.
            row_weight = torch.where(valid, row_weight / avg_factor, 0)
        return self.loss_weight * row_weight

    def check_first_call(self, pred: Tensor, target: Tensor) -> None:
        """Refuse probabilities, and axes that no shape tells, until a call had neither.

        Either would train a model on a wrong loss. Later calls are not read, since a GPU would make
        each wait, and since a sequence may then have any length.
        """
        if torch.compiler.is_compiling() or self._has_seen_logits:
            return
        if pred.is_meta or is_batched(pred):
            return
        check_class_axis(pred, target)
        if pred[:, 0].numel() >= LEAST_ROWS:
            if are_probabilities(pred.detach()):
                raise UserError(
                    f'pred {tuple(pred.shape)} holds probabilities, which sum to 1, but '
                    f'{type(self).__name__} takes logits: leave the softmax of the model out'
                )
            self._has_seen_logits = True

    def prepare_call(
        self, pred: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
    ) -> tuple[Tensor, Tensor, dict]:
        """Check a call; return the target of the formula, valid rows ``(N, *)``, and its options.

        Of `pred` only the shape, the dtype and the device are read.
        """
        check_shapes(pred, target, weight)
        num_classes = pred.shape[1]
        dtype = torch.promote_types(pred.dtype, torch.float32)
        options = self.options()
        if self.class_weight is not None:
            if len(self.class_weight) != num_classes:
                raise ValueError(
                    f'class_weight has {len(self.class_weight)} weights for {num_classes} classes: '
                    'give one for each class'
                )
            options['class_weight'] = self.class_weight.to(pred.device, dtype)
        if target.is_floating_point():
            if not self.soft_targets:
                raise ValueError(f'{type(self).__name__} takes integer labels, not probabilities')
            check_soft_target(target, weight)
            valid = target.new_ones(row_shape(pred), dtype=torch.bool)
            return target.to(dtype), valid, options
        if ignore_index is None:
            ignore_index = self.ignore_index
        labels = target.long()  # A narrow type would compare the ignored label modulo 256.
        valid = labels != ignore_index
        labels = torch.where(valid, labels, 0)
        if can_read(labels):
            check_labels(labels, num_classes, name='target', door='loss', ignore_index=ignore_index)
        elif torch.compiler.is_compiling() or not is_batched(labels):
            # This check does not wait for a GPU, and a compiled formula does not check labels.
            torch._assert_async(
                ((labels >= 0) & (labels < num_classes)).all(),
                f'a label is outside [0, {num_classes}) and is not '
                f'ignore_index={ignore_index}: check num_classes, or set ignore_index',
            )
        return labels, valid, options


def constructor_signature(
    kind: type[CalibrationLoss], options: dict[str, inspect.Parameter]
) -> inspect.Signature:
    """Return the signature of a constructor: options of the formula, and of all base classes."""
    parameters = dict(options)
    for ancestor in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        without_self = [*inspect.signature(ancestor.__init__).parameters.values()][1:]
        for parameter in without_self:
            if parameter.kind is not parameter.VAR_KEYWORD:
                parameters.setdefault(parameter.name, parameter)
    parameters['loss_name'] = parameters['loss_name'].replace(default=kind.loss_name)
    return inspect.Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


def row_shape(pred: Tensor) -> tuple[int, ...]:
    """Return ``(N, *)`` for logits ``(N, K, *)``."""
    return (*pred.shape[:1], *pred.shape[2:])


def check_shapes(pred: Tensor, target: Tensor, weight: Tensor | None) -> None:
    """Raise an error if the target or the weights of rows do not fit the logits."""
    for name, tensor in (('pred', pred), ('target', target)):
        if not isinstance(tensor, Tensor):
            remedy = f'torch.as_tensor({name})'
            if hasattr(tensor, 'logits'):
                remedy = f'{name}.logits'
            elif isinstance(tensor, Mapping):
                remedy = f'one of its entries {", ".join(map(str, tensor))}'
            raise TypeError(f'{name} must be a tensor, got {type(tensor).__name__}: give {remedy}')
    shape = tuple(pred.shape)
    if len(shape) < 2 or shape[1] < 2:
        refuse('pred', f'pred must be (N, K, *) of two classes or more, got {shape}')
    target_shape = shape if target.is_floating_point() else row_shape(pred)
    expected_shapes = [('target', target, target_shape), ('weight', weight, row_shape(pred))]
    for name, tensor, expected in expected_shapes:
        if tensor is not None and tuple(tensor.shape) != expected:
            fact = (
                f'{name} {tuple(tensor.shape)} of {tensor.dtype} does not fit pred {shape}, '
                f'expected {expected}'
            )
            refuse(name, fact, scores=pred, labels=target)


def check_class_axis(pred: Tensor, target: Tensor) -> None:
    """Raise an error for logits of sequences ``(N, K, K)``, of which no shape tells the class axis.

    Maps are no such case: a model of images has its classes in the second axis.
    """
    if pred.ndim == 3 and pred.shape[1] == pred.shape[2] and not target.is_floating_point():
        fact = f'nobody knows which axis of pred {tuple(pred.shape)} has the classes'
        refuse('axis', fact, door='loss', name='pred', label_name='target')


def are_probabilities(scores: Tensor) -> bool:
    """Return whether all rows of ``(N, K, *)`` scores are at least 0 and sum to 1."""
    is_row = (scores >= 0).all(dim=1) & ((scores.sum(dim=1) - 1).abs() <= SUM_TOLERANCE)
    return bool(is_row.all())


def scalar_tensor(name: str, values: Tensor) -> Tensor:
    """Return a tensor of one element in the shape of a number, or raise an error for another."""
    if values.numel() != 1:
        raise ValueError(
            f'{name} must be one number, got a tensor of shape {tuple(values.shape)}: give its '
            'sum, or the weight of each row as weight'
        )
    return values.reshape(())


def check_soft_target(target: Tensor, weight: Tensor | None) -> None:
    """Raise a ValueError for probabilities ``(N, K, *)`` that are negative or do not sum to 1.

    A target of several labels is one. Its cross-entropy has no lower bound. Rows without weight
    take no part.
    """
    probs = target.detach()
    if weight is not None:
        probs = torch.where((weight != 0).unsqueeze(1), probs, 1 / probs.shape[1])
    total = probs.sum(dim=1)
    remedy = 'give probabilities of one class, or train several labels with a sigmoid loss'
    if not can_read(probs):
        if not torch.compiler.is_compiling() and is_batched(probs):
            return
        # This check does not wait for a GPU.
        is_valid = (probs >= -TOLERANCE).all() & ((total - 1).abs() <= SUM_TOLERANCE).all()
        torch._assert_async(is_valid, f'a soft target is negative or does not sum to 1: {remedy}')
        return
    if not probs.numel():
        return
    lowest = probs.min().item()
    if not lowest >= -TOLERANCE:
        raise ValueError(f'target has negative or NaN probabilities, such as {lowest:g}: {remedy}')
    wrong = total[(total - 1).abs() > SUM_TOLERANCE]
    if len(wrong):
        raise ValueError(
            f'target has {len(wrong)} of {total.numel()} rows that do not sum to 1, such as '
            f'{wrong[0].item():g}: {remedy}'
        )


def check_formula(kind: type[CalibrationLoss]) -> None:
    """Raise a TypeError for a formula that a loss could not call with logits and target.

    A function in the body of a class is a method: it would get the loss in place of the logits.
    """
    formula = inspect.getattr_static(kind, 'formula')
    if hasattr(formula, '__get__'):
        formula = formula.__get__(object(), kind)  # An attribute of a loss is bound like this.
    if callable(formula):
        parameters = inspect.signature(formula).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
        if len(required) == 2:
            return
        problem = f'takes ({", ".join(required)})'
    else:
        problem = f'is {formula!r}'
    raise TypeError(
        f'{kind.__name__}.formula {problem}, but a loss calls it with (logits, target): write '
        'formula = staticmethod(FUNCTION) with a function that takes these two arguments and '
        'keyword-only options'
    )


def class_weight_tensor(
    class_weight: Sequence[float] | str | os.PathLike | None,
) -> Tensor | None:
    """Return the weights of the classes, ``(K,)``, from a sequence, an array or a file."""
    if class_weight is None:
        return None
    if isinstance(class_weight, (str, os.PathLike)):
        class_weight = read_class_weight(class_weight)
    if hasattr(class_weight, 'tolist'):
        class_weight = class_weight.tolist()
    return torch.tensor([check_number('class_weight', weight) for weight in class_weight])


def read_class_weight(path: str | os.PathLike) -> list[float]:
    """Return the class weights in a .json or .npy file, as mmseg's ``get_class_weight`` does.

    Its other formats run code or need another library.

    Raises:
        UserError: If there is no such file, or it holds anything but a list of numbers.
    """
    path = Path(path).expanduser()
    if path.suffix not in ('.json', '.npy'):
        raise UserError(f'class_weight={str(path)!r}: write the weights to a .json or .npy file')
    if not path.is_file():
        raise UserError(f'class_weight: there is no file {path.absolute()}')
    try:
        if path.suffix == '.json':
            weights = json.loads(path.read_text(encoding='utf-8'))
        else:
            weights = np.load(path, allow_pickle=False).tolist()
    except ValueError as error:
        raise UserError(f'class_weight: {path} cannot be read: {error}') from error
    if not isinstance(weights, list):
        raise UserError(f'class_weight: {path} holds no list of numbers, but {weights!r:.50}')
    return weights


def check_loss_name(name: str) -> None:
    """Raise an error for a name that mmengine would leave out of the gradient without a word."""
    if 'loss' not in name:
        raise ValueError(f'loss_name must contain "loss", or nothing is learnt; got {name!r}')
