"""The inputs of a model: which entries of a batch it is called with, and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter, Signature
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mmcalib.errors import UserError

# The input in batches of MONAI and nnU-Net, whose models give it another name.
INPUT_KEYS = ('image', 'data')
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
ANY_NUMBER = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
ANY_CALL = inspect.signature(lambda *args, **kwargs: None)
# No model computes with these, such as the path of an image.
METADATA = (str, bytes, int, float, PurePath, type(None))
# The last words of names of rows that number or weigh images; tokens have two axes.
NO_INPUT_WORDS = ('id', 'ids', 'idx', 'index', 'indices', 'weight', 'weights')
# Parameters for the loss of a model.
LOSS_PARAMETERS = ('labels', 'label', 'target')


class Inputs(NamedTuple):
    """The inputs of a model, as it is called with them.

    Attributes:
        arguments: Positional arguments.
        keywords: Keyword arguments.
        hint: The remedy if the model fails, where it may want them otherwise.
    """

    arguments: tuple
    keywords: Mapping[str, Any]
    hint: str | None = None

    @property
    def tokens(self) -> Tensor | None:
        """Token ids ``(N, L)``; None if there are none."""
        first_argument = self.arguments[0] if self.arguments else None
        tokens = self.keywords.get('input_ids', first_argument)
        if not torch.is_tensor(tokens) or tokens.is_floating_point() or tokens.ndim != 2:
            return None
        return tokens


class Arrangement(NamedTuple):
    """The keys of a batch's entries, by the parameters of a model.

    Attributes:
        by_parameter: The key of each parameter that gets an entry.
        by_position: The name of the parameter that gets it by position; None if none does.
        left_out: The keys of entries without a parameter.
    """

    by_parameter: dict[Any, Hashable]
    by_position: str | None
    left_out: list[Hashable]


def model_remedy(value: object) -> str:
    """Return the end of an error for what is no model, '' if nobody knows what it is."""
    for name in ('model', 'module_'):  # The results of mmcalib.calibrate, and skorch's nets.
        if isinstance(getattr(value, name, None), nn.Module):
            return f': give the model in it, its .{name}'
    return ''


def forward_signature(model: Callable) -> Signature:
    """Return the signature by which a model takes inputs; of a wrapper, that of what it wraps.

    Where it is unknown, as of a compiled function, any call is possible.
    """
    forward = model.forward if isinstance(model, nn.Module) else model
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return _scripted_signature(forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if isinstance(model, nn.Module) and kinds <= set(ANY_NUMBER):
        # Wrappers of torch.compile, of DDP and weight averages, and of PEFT.
        wrapped = getattr(model, '_orig_mod', None) or getattr(model, 'module', None)
        if hasattr(model, 'get_base_model'):
            wrapped = model.get_base_model()
        if isinstance(wrapped, nn.Module):
            return forward_signature(wrapped)
    return signature


def _scripted_signature(forward: Callable) -> Signature:
    """Return the signature of a traced model, which TorchScript knows; or that of any call."""
    schema = getattr(forward, 'schema', None)
    if schema is None:
        return ANY_CALL
    parameters = []
    for argument in schema.arguments[1:]:
        default = None if argument.has_default_value() else Parameter.empty
        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(Parameter(argument.name, kind, default=default))
    return Signature(parameters)


def names_entry(signature: Signature, key: Hashable) -> bool:
    """Return whether ``forward`` has a parameter of the name of an entry."""
    parameter = signature.parameters.get(key)
    return parameter is not None and parameter.kind in BY_NAME


def words(key: Hashable) -> list[str]:
    """Return the words of the name of an entry, such as patient and id."""
    return str(key).lower().split('_')


def arrange(keys: Iterable[Hashable], signature: Signature) -> Arrangement:
    """Return which parameter gets which entry of a batch.

    Entries go by their names, and to ``**kwargs`` if ``forward`` has them. An image, or a single
    entry, that ``forward`` does not name goes to the one parameter that needs a value.
    """
    keys = list(keys)
    by_parameter = {key: key for key in keys if names_entry(signature, key)}
    unnamed = [key for key in keys if key not in by_parameter]
    main_keys = [key for key in INPUT_KEYS if key in unnamed]
    if len(keys) == 1:
        main_keys = unnamed
    by_position = None
    parameter = _parameter_in_need(signature, by_parameter)
    if parameter is not None and len(main_keys) == 1:
        by_parameter[parameter.name] = main_keys[0]
        unnamed.remove(main_keys[0])
        is_first = parameter.name == next(iter(signature.parameters))
        if is_first and parameter.kind is not Parameter.KEYWORD_ONLY:
            by_position = parameter.name
    if _takes_any_name(signature):
        by_parameter |= {key: key for key in unnamed}
        unnamed = []
    return Arrangement(by_parameter, by_position, unnamed)


def _parameter_in_need(signature: Signature, filled: Mapping) -> Parameter | None:
    """Return the one parameter that an entry without a name of its own is for; None if unknown.

    It is the only one that needs a value; where none does and no entry has a parameter, the first.
    """
    parameters = list(signature.parameters.values())
    needy = _unfilled_parameters(signature, filled)
    if len(needy) == 1:
        return needy[0]
    if needy or filled or not parameters:
        return None
    # A wrapper of any call passes names on.
    is_any_call = parameters[0].kind in ANY_NUMBER and _takes_any_name(signature)
    return None if is_any_call else parameters[0]


def _unfilled_parameters(
    signature: Signature, filled: Mapping, default: Any = Parameter.empty
) -> list[Parameter]:
    """Return the parameters with a default and no value; if there is no default, they need one.

    Those whose default is None may take an input.
    """
    unfilled = []
    for parameter in signature.parameters.values():
        is_single = parameter.kind not in ANY_NUMBER
        if parameter.default is default and is_single and parameter.name not in filled:
            unfilled.append(parameter)
    return unfilled


def _takes_any_name(signature: Signature) -> bool:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return Parameter.VAR_KEYWORD in kinds


def inputs_from_entries(
    entries: Mapping[Any, Any], signature: Signature, source: str, label: str
) -> Inputs:
    """Return the inputs of a model from the entries of a batch.

    Args:
        entries: The entries without the labels.
        signature: The signature of the model, see :func:`forward_signature`.
        source: The dict of the entries, as code for an error: ``b`` of a batch b.
        label: The labels, as code.

    Raises:
        UserError: If ``forward`` has no parameter for an entry that may be an input.
    """
    arrangement = arrange(entries, signature)
    example = f'unpack=lambda b: ({example_inputs(entries, signature, source)}, {label})'
    whole_example = f'unpack=lambda b: (({source},), {label}) for the whole dict'
    takes_one = len(signature.parameters) == 1
    if arrangement.left_out and _may_lack_inputs(arrangement, entries, signature):
        remedy = f'{example}, or {whole_example}' if takes_one else example
        raise UserError(
            f'the model cannot take a batch: its forward takes {", ".join(signature.parameters)}, '
            f'and not {", ".join(map(str, arrangement.left_out))}: say what it gets, as {remedy}'
        )
    hint = None
    if not all(names_entry(signature, key) for key in arrangement.by_parameter.values()):
        calls = [f'{name}={source}[{key!r}]' for name, key in arrangement.by_parameter.items()]
        remedy = whole_example if takes_one else example
        hint = f'it got {", ".join(calls)}: to give it something else, say {remedy}'
    keywords = {name: entries[key] for name, key in arrangement.by_parameter.items()}
    if arrangement.by_position is None:
        return Inputs((), keywords, hint)
    argument = keywords.pop(arrangement.by_position)
    return Inputs((argument,), keywords, hint)


def _may_lack_inputs(
    arrangement: Arrangement, entries: Mapping[Any, Any], signature: Signature
) -> bool:
    """Return whether an entry that is left out may be what a parameter without a value is for.

    It prevents a wrong number: a model whose second input is optional predicts without it.
    """
    if not arrangement.by_parameter:
        return True
    if _unfilled_parameters(signature, arrangement.by_parameter):
        return True
    left_out = [entries[key] for key in arrangement.left_out]
    has_optional_input = bool(_unfilled_parameters(signature, arrangement.by_parameter, None))
    return has_optional_input and not _is_metadata(left_out)


def _is_metadata(value: Any) -> bool:
    return all(isinstance(leaf, METADATA) for leaf in tree_leaves(value))


def _may_be_input(key: Hashable, value: Any) -> bool:
    is_row = getattr(value, 'ndim', 1) == 1
    return not _is_metadata(value) and not (is_row and words(key)[-1] in NO_INPUT_WORDS)


def example_inputs(entries: Mapping[Any, Any], signature: Signature, source: str) -> str:
    """Return code for what a model may get of some entries of a batch, none of its inputs lost."""
    keys = list(entries)
    by_parameter, _, left_out = arrange(keys, signature)
    parameters = _unfilled_parameters(signature, by_parameter)
    tensors = [key for key in left_out if _may_be_input(key, entries[key])]
    if len(tensors) > len(parameters):
        for parameter in _unfilled_parameters(signature, by_parameter, None):
            if parameter.name not in LOSS_PARAMETERS:
                parameters.append(parameter)
    for parameter, key in zip(parameters, tensors or left_out, strict=False):
        by_parameter[parameter.name] = key
    by_parameter = by_parameter or {None: (tensors or keys)[0]}
    items = [f'{source}[{key!r}]' for key in by_parameter.values()]
    name = next(iter(by_parameter))
    is_first = name == next(iter(signature.parameters)) or not names_entry(signature, name)
    if len(items) == 1 and is_first:
        return items[0]
    pairs = [f'{name!r}: {item}' for name, item in zip(by_parameter, items, strict=True)]
    return f'{{{", ".join(pairs)}}}'


def inputs_from_items(items: Sequence, num_images: int, signature: Signature) -> Inputs:
    """Return the inputs of a model from a tuple or list: an argument each, or all in one.

    They are one argument if ``forward`` takes no more, a named tuple if it takes that, and a list
    of one thing for each image, such as images of unequal size.
    """
    if not _are_one_argument(items, num_images, signature):
        return Inputs(tuple(items), {})
    hint = (
        f'it got the {len(items)} inputs as one {type(items).__name__}: say what it gets, as '
        'unpack=lambda b: (b[0][0], b[1])'
    )
    return Inputs((items,), {}, hint)


def _are_one_argument(items: Sequence, num_images: int, signature: Signature) -> bool:
    if not can_take(signature, items):
        return False
    if hasattr(items, '_fields') or not can_take(signature, *items):
        return True
    if any(p.kind is Parameter.VAR_POSITIONAL for p in signature.parameters.values()):
        return False
    return len(items) == num_images and num_images not in map(_num_rows, items)


def can_take(signature: Signature, *arguments: Any) -> bool:
    """Return whether a model can be called with some positional arguments."""
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _num_rows(value: Any) -> int | None:
    """Return the length of the first axis of an array, a tensor or a list; None of all else."""
    has_rows = isinstance(value, (tuple, list)) or getattr(value, 'ndim', 0) > 0
    return len(value) if has_rows else None


def copy_inputs(inputs: Any, device: torch.device | None = None) -> Any:
    """Return a copy of inputs, or of a whole batch, since a model may write into its inputs.

    Args:
        inputs: Tensors, and objects, dicts, tuples and lists of them.
        device: The device of the copies; None for that of each tensor.
    """
    if torch.is_tensor(inputs):
        return inputs.to(inputs.device if device is None else device, copy=True)
    if hasattr(inputs, 'to'):  # As batches of graphs, of tokens, and packed sequences have it.
        copied = _copy_object(inputs)
        return copied if device is None else copied.to(device)
    if isinstance(inputs, Mapping):
        return {name: copy_inputs(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        values = [copy_inputs(value, device) for value in inputs]
        if hasattr(inputs, '_fields'):
            return type(inputs)(*values)
        return tuple(values) if isinstance(inputs, tuple) else values
    return _copy_object(inputs)


def _copy_object(value: Any) -> Any:
    """Return a copy of an object, or an object without a copy, such as a file, as it is."""
    try:
        return deepcopy(value)
    except Exception:  # Objects of any kind may raise anything.
        return value


def run_model(model: Callable, inputs: Inputs) -> Any:
    """Return the output of a model.

    Raises:
        UserError: If the model fails for inputs that are no tensors, or may be wanted otherwise.
    """
    try:
        return model(*inputs.arguments, **inputs.keywords)
    except (AttributeError, TypeError, ValueError) as error:
        remedy = _inputs_remedy(inputs)
        if remedy is None:
            raise
        first_line = str(error).partition('\n')[0]
        raise UserError(f'the model cannot take a batch ({first_line}): {remedy}') from error


def _inputs_remedy(inputs: Inputs) -> str | None:
    """Return what to do about inputs that a model has failed for; None if nobody knows."""
    values = [*inputs.arguments, *inputs.keywords.values()]
    parts = []
    for value in values:
        parts += value if isinstance(value, list) else [value]
    if any(isinstance(part, str) for part in parts):
        return 'its inputs are texts: give the tensors of a tokenizer'
    if any(isinstance(part, np.ndarray) for part in parts):
        return 'its inputs are numpy arrays: give tensors, as torch.from_numpy(x).float()'
    if any(hasattr(part, 'to_numpy') for part in parts):
        return 'its inputs are data frames: give tensors, as torch.from_numpy(x.to_numpy()).float()'
    if any(isinstance(value, list) and _is_number(value) for value in values):
        return 'its inputs are lists of numbers: give tensors, as torch.tensor(x)'
    return inputs.hint


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or a list that begins with one, however deep."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float))
