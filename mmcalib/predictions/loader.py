"""What any torch model says of the batches of a loader, with their labels; OpenMMLab is not needed.

A batch is ``(inputs, labels)`` or a dict with its labels under ``labels``, ``label``, ``mask`` or
``target``. The model gets tensors as they are, tuples as arguments, and dicts as keywords, or
their ``image`` or ``data`` alone if they have one. So loaders of torchvision, timm, transformers,
MONAI and nnU-Net are read as they are.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.options import check_ignore_index
from mmcalib.predictions.arrays import (
    MASKED,
    axes_look_alike,
    check_class_labels,
    is_one_hot,
    label_shape,
    mark_masked,
    misfit_remedy,
    tensor_of,
    without_class_axis,
)
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.tensors import at_least_single, check_finite, unchanged_randomness

LABELS = ('labels', 'label', 'mask', 'target')
INPUTS = ('image', 'data')
LOGITS = ('logits', 'out')
# So many outputs in [0, 1] are hardly logits.
FEW = 10
RANDOM_SAMPLERS = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)
# Returns the logits of what a model returns.
Logits = Callable[[Any], Tensor]


@contextmanager
def reader(
    model: Callable,
    *,
    logits: Logits | None = None,
    ignore_index: int | None = None,
    device: str | torch.device | None = None,
) -> Iterator[Callable[[Any], tuple[Tensor, Tensor]]]:
    """Give a function from a batch to its logits ``(N, K, *)`` and labels, both on the device.

    Labels are int64 ``(N, *)``; of several labels, whose logits are ``(N, L)``, they are ``(N, L)``
    of 0 and 1. Logits of one class, K = 1, are those of a sigmoid. The model predicts as in
    evaluation, and a batch the same each time; afterwards its modes, its device and the random
    state are as before.

    Args:
        model: A module, or a function of the inputs.
        logits: Which part of its output the logits are, such as ``lambda output: output[0]``; by
            default its ``logits``, its ``['out']``, or the output itself.
        ignore_index: The label of what does not count.
        device: Where to predict; by default where the model is.

    Raises:
        ValueError: While reading, for batches without labels, labels that are no classes of the
            logits, and logits that are NaN, infinite or probabilities; for inputs that are texts,
            arrays or keys that the model fails for.
    """
    if logits is not None and not callable(logits):
        raise TypeError(f'logits must be a function of the output, got {logits!r}')
    if ignore_index is not None:
        check_ignore_index(ignore_index)
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    tensors = itertools.chain(model.parameters(), model.buffers()) if modules else ()
    home = next((tensor.device for tensor in tensors), None)
    place = home if device is None else torch.device(device)

    def read(batch: Any) -> tuple[Tensor, Tensor]:
        inputs, labels = _parts(batch)
        inputs = _copied(inputs, place)
        drawing = [place] if place is not None and place.type == 'cuda' else []
        with torch.no_grad(), torch.random.fork_rng(drawing):
            torch.manual_seed(0)
            try:
                output = _output(model, inputs)
            except (AttributeError, TypeError, ValueError) as error:
                remedy = _inputs_remedy(model, inputs)
                if remedy is None:
                    raise
                raise UserError(f'the model cannot take a batch: {remedy}') from error
            found = logits_of(output, logits).as_subclass(Tensor)
        _, labels = mark_masked((), labels)
        labels = tensor_of('labels', labels).to(found.device)
        return check_logits(found, labels, ignore_index)

    try:
        if modules:
            model.eval()
        if modules and device is not None:
            model.to(place)
        yield read
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training
        if modules and device is not None:
            model.to(home)


def read_loader(
    model: Callable,
    loader: Iterable,
    text: str,
    kept: KeptBatches | None = None,
    **options: Any,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits and the labels of each batch that is not empty, with a progress bar.

    Args:
        model: See :func:`reader`.
        loader: Batches, in any order.
        text: What the progress bar says.
        kept: Keeps a few of the batches.
        **options: Of :func:`reader`.

    Raises:
        ValueError: See :func:`reader`; for a loader without batches, such as a spent generator, and
            at its end for labels that are all one-hot, which are of one class rather than several,
            and for outputs of sigmoids.
    """
    _check_is_loader(loader)
    size, one_hot, shares, sigmoid, axes = 0, True, True, False, set()
    tokens = _Tokens(options.get('ignore_index'))
    axes_are_known = options.get('logits') is not None
    # A loader draws its order at random, and its transforms may.
    with ExitStack() as contexts:
        contexts.enter_context(unchanged_randomness())
        read = contexts.enter_context(reader(model, **options))
        if kept is not None:
            contexts.enter_context(kept.watching())
        for batch in progress(loader, text):
            logits, labels = read(batch)
            if not len(logits):
                continue
            tokens.check(batch, logits, labels)
            if logits.ndim > 2 and not axes_are_known:
                _check_class_axis(logits)
                axes_are_known = True
            if kept is not None:
                kept.add(batch, [logits])
            size += len(logits)
            axes.add(logits.ndim)
            if len(axes) > 1:
                raise UserError('some batches are of maps and some of rows: give a loader of each')
            several = labels.shape == logits.shape
            one_hot = one_hot and several and is_one_hot(labels)
            sigmoid = several or logits.shape[1] == 1
            shares = shares and bool(logits.numel() and logits.min() >= 0 and logits.max() <= 1)
            yield logits, labels
    tokens.check_all()
    if not size:
        raise UserError('the loader has no batches: a generator can be read only once')
    if one_hot:
        raise UserError('the labels are one-hot: give labels.argmax(1), a class of each')
    if shares and size >= FEW:
        said = 'the outputs of the model all lie in [0, 1], as those of a sigmoid do'
        if sigmoid:
            raise UserError(f'{said}: leave the sigmoid out, or give logits=torch.logit')
        warnings.warn(f'{said}: a softmax over them is wrong if they are', stacklevel=2)


def group_numbers(groups: Sequence[Hashable], count: int, loader: object = None) -> Tensor:
    """Return which group each image is of, ``(n,)`` int64, numbered in their order.

    Args:
        groups: A name of each image's group, such as its video, patient or flight.
        count: How many images there are.
        loader: That they came from.

    Raises:
        ValueError: For another number of groups than of images, or a loader that
            :func:`check_order` refuses.
    """
    check_order(loader)
    names = groups.tolist() if hasattr(groups, 'tolist') else list(groups)
    if len(names) != count:
        raise UserError(f'groups must name the group of each of {count} images, got {len(names)}')
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(name, len(known)) for name in names], device='cpu')


def check_order(loader: object) -> None:
    """Refuse a loader that does not read its images in their order, so that no group is another's.

    A random sampler is refused, whatever order it draws. Any other one is asked for its indices,
    which have to ascend. A loader without a sampler, such as a list of batches, is in order.

    Raises:
        ValueError: If an index is not above the one before it, or the sampler can be read once.
    """
    if isinstance(getattr(loader, 'dataset', None), torch.utils.data.IterableDataset):
        return  # Its sampler yields None for each image.
    sampler = getattr(loader, 'sampler', None)
    batches = getattr(loader, 'batch_sampler', None)
    if batches is not None:
        sampler = getattr(batches, 'sampler', None)
    elif sampler is not None:
        batches = ([index] for index in sampler)
    if batches is None:
        return
    # The order of two images drawn at random ascends every second time.
    is_random = isinstance(sampler, RANDOM_SAMPLERS)
    can_be_read_once = isinstance(sampler, Iterator)
    if not (is_random or can_be_read_once or _descends(batches)):
        return
    raise UserError(
        'groups are in the order of the images, and the sampler of the loader has another '
        f'({type(sampler or batches).__name__}): give a loader with shuffle=False, and no sampler'
    )


def _descends(batches: Iterable[Iterable]) -> bool:
    """Return whether any index of a sampler is not above the one before it."""
    with unchanged_randomness():
        previous = None
        for index in itertools.chain.from_iterable(batches):
            if previous is not None and index <= previous:
                return True
            previous = index
    return False


def progress(items: Iterable, text: str) -> Iterable:
    """Show a progress bar on stderr, of batches of a loader or other items.

    The first of several processes shows it.
    """
    from rich.console import Console
    from rich.progress import track

    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    others = group and torch.distributed.get_rank() > 0
    options = dict(total=length_hint(items) or None, console=Console(stderr=True), disable=others)
    return track(items, text, **options)


def _parts(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch."""
    if isinstance(batch, Mapping):
        for key in LABELS:
            if key in batch:
                inputs = {name: value for name, value in batch.items() if name != key}
                return next((inputs[k] for k in INPUTS if k in inputs), inputs), batch[key]
        found, keys = f'a dict of {", ".join(map(str, batch))}', [*batch]
    elif isinstance(batch, (tuple, list)):
        if len(batch) == 2:
            return batch[0], batch[1]
        found, keys = f'{len(batch)} things', [*range(len(batch))]
    else:
        found, keys = f'one {type(batch).__name__}', []
    remedy = 'add the labels'
    if isinstance(batch, (Tensor, np.ndarray)):
        remedy += '; one batch alone goes in a list, as [(inputs, labels)]'
    if len(keys) > 1:
        remedy = f'wrap the loader, as in [(b[{keys[0]!r}], b[{keys[1]!r}]) for b in loader]'
    raise UserError(
        f'a batch must be (inputs, labels), or a dict with {", ".join(LABELS[:-1])} or '
        f'{LABELS[-1]}; got {found}: {remedy}'
    )


def _check_is_loader(loader: Iterable) -> None:
    """Raise a UserError for inputs and labels in place of batches of them."""
    is_pair = isinstance(loader, (tuple, list)) and len(loader) == 2
    if is_pair and isinstance(loader[1], (Tensor, np.ndarray)):
        raise UserError(
            'a loader must give batches, and a pair of inputs and labels is one batch: give it '
            'in a list, as [(inputs, labels)], or a DataLoader of a TensorDataset'
        )


def _output(model: Callable, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def _inputs_remedy(model: Callable, inputs: Any) -> str | None:
    """Return what to do about inputs that a model has failed for; None if nobody knows."""
    values = [inputs]
    if isinstance(inputs, Mapping):
        values = [*inputs.values()]
        forward = model.forward if isinstance(model, nn.Module) else model
        parameters = inspect.signature(forward).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        lacking = [str(key) for key in inputs if key not in parameters]
        if lacking and inspect.Parameter.VAR_KEYWORD not in kinds:
            return (
                f'its forward takes {", ".join(parameters)}, and not {", ".join(lacking)}: leave '
                'these keys out of the batches'
            )
    elif isinstance(inputs, (tuple, list)):
        values = [*inputs]
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    if any(isinstance(part, str) for part in parts):
        return 'its inputs are texts: give the tensors of a tokenizer'
    if any(isinstance(part, np.ndarray) for part in parts):
        return 'its inputs are numpy arrays: give tensors, as torch.from_numpy(x).float()'
    if any(isinstance(value, list) and _is_number(value) for value in values):
        return 'its inputs are lists of numbers: give tensors, as torch.tensor(x)'
    return None


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or a list that begins with one, however deep."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float))


class _Tokens:
    """A check that token labels are not the tokens that the model reads.

    It prevents a wrong number: a causal model's logits are of the next token, so unshifted labels
    measure how well it repeats its input.

    Args:
        ignore_index: The label of what does not count.
    """

    def __init__(self, ignore_index: int | None) -> None:
        self.ignore_index = ignore_index
        self.num_copies = 0
        self.differ = False

    def check(self, batch: Any, logits: Tensor, labels: Tensor) -> None:
        """Raise a UserError once enough labels are read, all of which are the tokens read."""
        ids = _token_ids(batch)
        if self.differ or ids is None or ids.shape != labels.shape or logits.ndim != 3:
            return
        valid = torch.ones_like(labels, dtype=torch.bool)
        if self.ignore_index is not None:
            valid = labels != self.ignore_index
        self.differ = bool((ids.to(labels) != labels)[valid].any())
        self.num_copies += int(valid.sum())
        if self.num_copies >= FEW:
            self.check_all()

    def check_all(self) -> None:
        """Raise a UserError if all labels so far are the tokens that the model reads."""
        if self.num_copies and not self.differ:
            raise UserError(
                'the labels equal input_ids, the tokens that the model reads, but the logits of a '
                'causal model are of the next token. Shift both: give labels[:, 1:], as in '
                "[(batch, batch['labels'][:, 1:]) for batch in loader], and "
                'logits=lambda output: output.logits[:, :-1].movedim(-1, 1)'
            )


def _token_ids(batch: Any) -> Tensor | None:
    """Return the token ids ``(N, L)`` that a batch gives to a model, None if it has none."""
    inputs, _ = _parts(batch)
    if isinstance(inputs, Mapping):
        inputs = inputs.get('input_ids')
    elif isinstance(inputs, (tuple, list)) and inputs:
        inputs = inputs[0]
    if not torch.is_tensor(inputs) or inputs.is_floating_point() or inputs.ndim != 2:
        return None
    return inputs


def _check_class_axis(logits: Tensor) -> None:
    """Raise a UserError for maps of which no shape tells where the classes are.

    It prevents a wrong number: logits (N, L, K) with L = K would be read with swapped axes.
    """
    if axes_look_alike(logits):
        raise UserError(
            f'nobody knows which axis of logits {tuple(logits.shape)} has the classes: give '
            'logits=lambda output: output.movedim(-1, 1) if it is the last, or '
            'logits=lambda output: output if it is the second (with .logits for an output that has '
            'them)'
        )


def _copied(inputs: Any, device: torch.device | None) -> Any:
    """Return copies of tensors on a device, since a model may write into its inputs."""
    if torch.is_tensor(inputs):
        return inputs.to(inputs.device if device is None else device, copy=True)
    if isinstance(inputs, Mapping):
        return {name: _copied(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return [_copied(value, device) for value in inputs]
    return inputs


def key_of(output: Any) -> str | None:
    """Return the key of the logits in a model's output; None if it is no dict of them."""
    found = (key for key in LOGITS if isinstance(output, Mapping) and key in output)
    return next(found, None)


def logits_of(output: Any, logits: Logits | None) -> Tensor:
    """Return the logits ``(N, K, *)`` of a model's output, in float32 or float64."""
    if logits is not None:
        output = logits(output)
    elif not torch.is_tensor(output):
        key = key_of(output)
        output = output[key] if key else getattr(output, 'logits', output)
    if not torch.is_tensor(output) or not output.is_floating_point() or not output.ndim:
        found, part = type(output).__name__, 'output[0]'
        if torch.is_tensor(output):
            found = f'{output.dtype} of shape {tuple(output.shape)}'
        elif isinstance(output, Mapping):
            found, part = f'{found} of {", ".join(map(str, output))}', 'output[KEY]'
        raise UserError(
            f'logits must be one tensor of floats, (N, K, …), but the model returns {found}: name '
            f'the part that is, as in logits=lambda output: {part}'
        )
    found = at_least_single(output)
    return found[:, None] if found.ndim == 1 else found


def check_logits(logits: Tensor, labels: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return logits and labels, int64, that fit each other."""
    labels = without_class_axis(logits, labels.as_subclass(Tensor))
    several = labels.shape == logits.shape and logits.ndim == 2
    if not several and labels.shape != label_shape(logits):
        raise UserError(
            f'logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}: '
            f'{_misfit_remedy(logits, labels)}'
        )
    masked = labels == MASKED
    if masked.any():
        if ignore_index is None:
            raise UserError('numpy masks some labels: set ignore_index, such as 255, for them')
        labels = labels.masked_fill(masked, ignore_index)
    if labels.is_floating_point():
        fractions = labels[labels != labels.round()]  # NaN is among them
        if len(fractions):
            raise UserError(f'labels must be whole numbers, got {fractions[:5].tolist()}')
    labels = labels.long()
    counted = labels if ignore_index is None else labels[labels != ignore_index]
    check_class_labels(counted, 2 if several else max(logits.shape[1], 2), ignore_index)
    check_finite(logits, 'the output of the model')
    if not several and logits.shape[1] > 1:
        _check_no_probabilities(logits)
    return logits, labels


def _check_no_probabilities(logits: Tensor) -> None:
    """Raise a UserError for scores ``(N, K, *)`` that are probabilities, or percentages.

    It prevents a wrong number: a softmax over them is nearly uniform. Rounded ones count if there
    are many.
    """
    if not logits.numel() or logits.amin() < 0:
        return
    sums = logits.sum(dim=1)
    tolerance = 2e-2 if sums.numel() >= FEW else 1e-3
    for total, scale in ((1, ''), (100, ' / 100')):
        if ((sums / total - 1).abs() < tolerance).all():
            raise UserError(
                f'the model returns probabilities, which sum to {total}, where logits are wanted: '
                'leave its softmax out, or give their logarithm, as '
                f'logits=lambda output: (output{scale}).clamp(min=1e-38).log() of a loader'
            )


def _misfit_remedy(logits: Tensor, labels: Tensor) -> str:
    """Return what to do about labels that do not fit logits ``(N, K, *)``."""
    if not labels.ndim:
        return 'give batches, as of a DataLoader'
    if logits.ndim > 2 and labels.shape == logits.shape[:-1]:
        return (
            'the classes are the second axis: give logits=lambda output: output.movedim(-1, 1), or '
            'output.logits.movedim(-1, 1) of an output that has them'
        )
    if remedy := misfit_remedy(logits, labels, 'logits'):
        return remedy
    if labels.ndim == logits.ndim - 1 and labels.ndim > 2:
        return f'interpolate them to {tuple(labels.shape[1:])} in logits=…'
    return 'check the axes of both'
