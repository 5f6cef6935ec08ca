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
from mmcalib.losses.value_and_gradient import weighted_sum, without_unweighted
from mmcalib.options import check_choice, check_integer, check_number
from mmcalib.tensors import SUM_TOLERANCE, TOLERANCE, check_labels

# What a formula is given by the call; its other keyword-only arguments are attributes of the loss.
GIVEN = ('class_weight', 'neighbours', 'weight', 'over_ranks')
ANY_NUMBER = (0.0, float('inf'))
SWITCH = (True, False)
HINT = 'check num_classes, or set ignore_index'
TWO = 'for a binary task set out_channels=2 (mmseg) or num_classes=2 (mmpretrain)'


class CalibrationLoss(nn.Module):
    r"""Turns a loss per row into a loss that the heads of both toolboxes can call.

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
        options: The formula's.

    Attributes:
        formula: ``formula(logits, target, *, class_weight, **options)`` returns the loss of every
            row in plain, differentiable operations.
        ranges: The least and the largest value of numbers; of others they are 0 and infinity.
        choices: The values of other options.
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

    def __init_subclass__(cls) -> None:
        """Give the constructor the options of the formula, with its defaults.

        Raises:
            TypeError: For a formula that does not take logits and target as an attribute of a loss.
        """
        given = {}
        if hasattr(cls, 'formula'):
            check_formula(cls)
            given = inspect.signature(cls.formula).parameters
        own = [p for p in given.values() if p.kind is p.KEYWORD_ONLY and p.name not in GIVEN]
        cls.arguments = tuple(p.name for p in own)  # which PyTorch 2.3 can compile
        found = {p.name: p for p in own if p.default is not p.empty}
        cls.defaults = {name: p.default for name, p in found.items()}
        numbers = {name: ANY_NUMBER for name, x in cls.defaults.items() if isinstance(x, float)}
        switches = {name: SWITCH for name, x in cls.defaults.items() if isinstance(x, bool)}
        cls.ranges, cls.choices = {**numbers, **cls.ranges}, {**switches, **cls.choices}
        for kind in cls.__mro__[: cls.__mro__.index(nn.Module)]:
            for p in [*inspect.signature(kind.__init__).parameters.values()][1:]:
                if p.kind is not p.VAR_KEYWORD:
                    found.setdefault(p.name, p)
        found['loss_name'] = found['loss_name'].replace(default=cls.loss_name)
        cls.__signature__ = inspect.Signature(sorted(found.values(), key=lambda p: p.kind))

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
        self.__signature__.bind_partial(**options)  # raises a TypeError for one of another name
        self.loss_name = self.loss_name if loss_name is None else loss_name
        check_loss_name(self.loss_name)
        self.ignore_index = check_integer('ignore_index', ignore_index, least=-float('inf'))
        self.reduction = check_choice('reduction', reduction, self.reductions)
        self.loss_weight = check_number('loss_weight', loss_weight)
        self.compiled = check_choice('compile', compile, SWITCH)
        if isinstance(class_weight, (str, os.PathLike)):
            class_weight = read_class_weight(class_weight)
        if class_weight is not None:
            class_weight = getattr(class_weight, 'tolist', lambda: class_weight)()
            class_weight = torch.tensor([check_number('class_weight', w) for w in class_weight])
        # Not in the state dict: checkpoints of other losses must load without complaint.
        self.register_buffer('class_weight', class_weight, persistent=False)
        for name, default in self.defaults.items():
            setattr(self, name, self.check_parameter(name, options.get(name, default)))
        self._scheduled = set()

    def check_parameter(self, name: str, value: object) -> object:
        """Return a value that an option may have, or raise an error."""
        if name in self.choices:
            return check_choice(name, value, self.choices[name])
        if name in self.ranges:
            least, most = self.ranges[name]
            return float(check_number(name, value, least=least, most=most))
        return check_integer(name, value) if isinstance(self.defaults[name], int) else value

    def set_parameters(self, **values: float) -> None:
        """Set parameters of :attr:`ranges`, as a schedule does."""
        for name, value in values.items():
            setattr(self, name, self.check_parameter(name, value))
            self._scheduled.add(name)

    def options(self) -> dict:
        """Return the arguments of the formula that are attributes of the loss."""
        options = {name: getattr(self, name) for name in self.arguments}
        if self.compiled:
            # What a schedule changes would be compiled in; but MbLS at 4×21×256×256 takes 1.10 of
            # cross-entropy's time with tensors and 0.78 without.
            for name in self._scheduled.intersection(options):
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
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            pred: Logits ``(N, K)`` or ``(N, K, H, W)``. float16 and bfloat16 are computed in
                float32, float64 stays.
            target: Integer labels ``(N,)`` or ``(N, H, W)``, or probabilities in the shape of
                ``pred`` (Mixup, CutMix).
            weight: A weight per row, in the shape of the labels.
            avg_factor: What the sum is divided by under ``'mean'``.
            reduction_override: Replaces the reduction of the constructor for this call.
            ignore_index: Replaces the ignored label of the constructor for this call.

        Returns:
            A scalar, or one loss per row for ``'none'`` (0 where ignored). With every row ignored:
            0, which still has a gradient (of zeros).

        Raises:
            ValueError: If shapes do not fit, a label is neither in [0, K) nor the ignored one,
                probabilities are negative or do not sum to 1, or ``avg_factor`` comes with
                ``'sum'``.
            RuntimeError: Instead, for a target on a GPU or inside a compiled model.
        """
        reduction = check_choice('reduction', reduction_override or self.reduction, self.reductions)
        if avg_factor is not None and reduction == 'sum':
            raise ValueError("avg_factor divides a mean; it cannot be used with reduction='sum'")
        target, valid, options = self.read(pred, target, weight, ignore_index)
        rows = self.row_weights(valid, pred, reduction, avg_factor)
        if weight is not None:
            rows = rows * weight.to(rows.dtype)
        return self.of_rows(pred, target, rows, options, reduction)

    def of_rows(self, pred, target, rows, options, reduction) -> Tensor:
        """Return the loss of rows with these weights."""
        if reduction == 'none':
            return self.formula(without_unweighted(pred, rows), target, **options) * rows
        return weighted_sum(self.formula, pred, target, rows, options, self.compiled)

    def row_weights(self, valid: Tensor, pred: Tensor, reduction: str, avg_factor=None) -> Tensor:
        """Return the factor of every row in the result; an ignored one has 0, even of 0 / 0."""
        rows = valid.to(torch.promote_types(pred.dtype, torch.float32))
        if reduction == 'mean':
            if avg_factor is None:
                avg_factor = rows.sum().clamp(min=1)
            rows = torch.where(valid, rows / avg_factor, 0)
        return self.loss_weight * rows

    def read(
        self, pred: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
    ) -> tuple[Tensor, Tensor, dict]:
        """Check a call; return the target of the formula, valid rows ``(N, *)``, and its options.

        Of `pred` only the shape, the dtype and the device are read.
        """
        soft, shape = target.is_floating_point(), tuple(pred.shape)
        rows, classes = shape[:1] + shape[2:], shape[1] if len(shape) > 1 else 0
        if classes < 2:
            raise ValueError(f'pred must be (N, K, *) of two classes or more, got {shape}: {TWO}')
        wanted = shape if soft else rows
        for name, tensor, fit in (('target', target, wanted), ('weight', weight, rows)):
            if tensor is not None and tuple(tensor.shape) != fit:
                found = f'{name} {tuple(tensor.shape)} of {tensor.dtype}'
                raise ValueError(f'{found} does not fit pred {shape}: expected {fit}')
        options, dtype = self.options(), torch.promote_types(pred.dtype, torch.float32)
        if self.class_weight is not None:
            if len(self.class_weight) != classes:
                raise ValueError(f'class_weight for {len(self.class_weight)} classes of {classes}')
            options['class_weight'] = self.class_weight.to(pred.device, dtype)
        if soft:
            if not self.soft_targets:
                raise ValueError(f'{type(self).__name__} takes integer labels, not probabilities')
            check_soft_target(target, weight)
            return target.to(dtype), target.new_ones(rows, dtype=torch.bool), options
        ignore_index = self.ignore_index if ignore_index is None else ignore_index
        labels = target.long()  # a narrow type would compare the ignored label modulo 256
        valid = labels != ignore_index
        labels = torch.where(valid, labels, 0)
        if labels.device.type == 'cpu' and not torch.compiler.is_compiling():
            check_labels(labels, classes, hint=f'They are not ignore_index={ignore_index}: {HINT}')
        else:  # nobody waits; a compiled formula would not notice
            inside = ((labels >= 0) & (labels < classes)).all()
            hint = f'and is not ignore_index={ignore_index}: {HINT}'
            torch._assert_async(inside, f'a label is outside [0, {classes}) {hint}')
        return labels, valid, options


def check_soft_target(target: Tensor, weight: Tensor | None) -> None:
    """Refuse probabilities ``(N, K, *)`` that are negative or do not sum to 1, such as of labels.

    Cross-entropy of such a target has no lower bound. Rows without weight take no part.
    """
    probs = target.detach()
    if weight is not None:
        probs = torch.where((weight != 0).unsqueeze(1), probs, 1 / probs.shape[1])
    total = probs.sum(dim=1)
    remedy = 'give probabilities of one class, or train several labels with a sigmoid loss'
    if probs.device.type != 'cpu' or torch.compiler.is_compiling():  # nobody waits
        right = (probs >= -TOLERANCE).all() & ((total - 1).abs() <= SUM_TOLERANCE).all()
        torch._assert_async(right, f'a soft target is negative or does not sum to 1: {remedy}')
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
        formula = formula.__get__(object(), kind)  # as an attribute of a loss
    if callable(formula):
        parameters = inspect.signature(formula).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
        if len(required) == 2:
            return
        takes = f'takes ({", ".join(required)})'
    else:
        takes = f'is {formula!r}'
    raise TypeError(
        f'{kind.__name__}.formula {takes} where a loss calls it with (logits, target): write '
        'formula = staticmethod(FUNCTION), of a function with these arguments and keyword-only '
        'options'
    )


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
