"""The logits and labels of any torch model, from the batches of a loader; OpenMMLab is not needed.

A batch is ``(inputs, labels)`` or a dict in which one entry alone can be the labels: it is named
``labels``, ``label``, ``mask`` or ``target``, and is no input of the model. The model gets a tensor
as it is, a tuple as arguments, and of a dict all entries that its ``forward`` names. An ``image``,
``data`` or single entry of another name is its one required argument. So loaders of torchvision,
timm, transformers, MONAI and nnU-Net are read as they are; of others, ``unpack`` says what is what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Signature
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.predictions.arrays import Array, as_tensors
from mmcalib.predictions.batches import Unpack, check_is_loader, split_batch
from mmcalib.predictions.contract import Contract
from mmcalib.predictions.distributed import check_reads_all
from mmcalib.predictions.find_logits import Logits, find_logits
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.predictions.model_inputs import Inputs, copy_inputs, forward_signature, run_model
from mmcalib.predictions.progress import progress
from mmcalib.tensors import on_float64_device, plain_tensor, seeded, unchanged_randomness


def read_loader(
    model: Callable,
    loader: Iterable,
    text: str,
    kept: KeptBatches | None = None,
    *,
    unpack: Unpack | None = None,
    logits: Logits | None = None,
    ignore_index: int | None = None,
    device: str | torch.device | None = None,
) -> Iterator[ImagePredictions]:
    """Yield the predictions of each batch that is not empty, with a progress bar.

    Args:
        model: See :func:`reader`.
        loader: Batches, in any order.
        text: The text of the progress bar.
        kept: An object that keeps a few of the batches.
        unpack: See :func:`reader`.
        logits: See :func:`reader`.
        ignore_index: The label of predictions that are not valid.
        device: See :func:`reader`.

    Raises:
        ValueError: See :func:`reader` and :class:`~mmcalib.predictions.contract.Contract`; for a
            loader that gives each process a part of the images, or no batches, as a spent
            generator.
    """
    check_is_loader(loader)
    check_reads_all(loader)
    contract = Contract(
        door='loader', ignore_index=ignore_index, class_axis_is_known=logits is not None
    )
    with ExitStack() as contexts:
        # A loader draws its order at random, and its transforms may.
        contexts.enter_context(unchanged_randomness())
        read = contexts.enter_context(reader(model, unpack=unpack, logits=logits, device=device))
        if kept is not None:
            contexts.enter_context(kept.watching())
        for batch in progress(loader, text):
            inputs, labels = read.split(batch)
            batch_logits = read.predict(inputs)
            if not len(batch_logits):
                continue
            values, labels, valid = as_tensors('logits', batch_logits, labels)
            predictions = contract.read(values, labels, valid=valid)
            contract.note(predictions, inputs.tokens)
            if kept is not None:
                kept.add(batch, values)
            yield predictions
    if not contract.num_images:
        raise UserError('the loader has no batches: a generator can be read only once')
    contract.finish()


@contextmanager
def reader(
    model: Callable,
    *,
    unpack: Unpack | None = None,
    logits: Logits | None = None,
    device: str | torch.device | None = None,
) -> Iterator[BatchReader]:
    """Give a function from a batch to its logits ``(N, K, *)``, on the device.

    Logits of one class, K = 1, are those of a sigmoid. The model predicts as in evaluation, and a
    batch the same each time; observers of a quantization record nothing, and afterwards its modes,
    its device and the random state are as before.

    Args:
        model: A module, or a function of the inputs.
        unpack: A function from a batch to its inputs and labels; None for the usual batches.
        logits: A function that takes the logits out of the output, such as
            ``lambda output: output[0]``; None for its ``logits``, its ``['out']``, or the output
            itself.
        device: The device to predict on; None for that of the model.

    Raises:
        ValueError: While reading, for batches whose inputs or labels are not known, and for inputs
            that are texts or arrays and that the model fails for.
    """
    if logits is not None and not callable(logits):
        raise TypeError(f'logits must be a function of the output, got {logits!r}')
    with _evaluating(model, device) as model_device, _without_observers(model):
        yield BatchReader(model, forward_signature(model), unpack, logits, model_device)


@dataclass(frozen=True)
class BatchReader:
    """A function from a batch to its logits, see :func:`reader`.

    Attributes:
        model: The model, in evaluation mode.
        signature: Its signature.
        unpack: See :func:`reader`.
        logits: See :func:`reader`.
        device: The device to predict on; None if it is unknown.
    """

    model: Callable
    signature: Signature
    unpack: Unpack | None
    logits: Logits | None
    device: torch.device | None

    def __call__(self, batch: Any) -> Tensor:
        inputs, _ = self.split(batch)
        return self.predict(inputs)

    def split(self, batch: Any) -> tuple[Inputs, Array]:
        """Return the inputs and the labels of a batch."""
        return split_batch(batch, self.signature, self.unpack)

    def predict(self, inputs: Inputs) -> Tensor:
        """Return the logits of inputs, on a device that has float64."""
        with torch.no_grad(), seeded(0, self.device):
            output = run_model(self.model, copy_inputs(inputs, self.device))
            return on_float64_device(plain_tensor(find_logits(output, self.logits)))


@contextmanager
def _evaluating(
    model: Callable, device: str | torch.device | None
) -> Iterator[torch.device | None]:
    """Put a module into evaluation mode on a device for a while, and give the device.

    It is None if a function, or a module without tensors, is on no device that is known.
    """
    if not isinstance(model, nn.Module):
        yield None if device is None else torch.device(device)
        return
    modules = list(model.modules())
    modes = [module.training for module in modules]
    tensors = [*model.parameters(), *model.buffers()]
    filled_tensors = [tensor for tensor in tensors if not tensor.is_meta]
    if tensors and not filled_tensors:
        raise UserError(
            'the model is on the meta device, where tensors have no values: give '
            "model.to_empty(device='cpu') into which its state dict is loaded"
        )
    device_before = filled_tensors[0].device if filled_tensors else None
    try:
        model.eval()
        if device is None:
            yield device_before
        else:
            model.to(device)
            yield torch.device(device)
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training
        if device is not None:
            model.to(device_before)


@contextmanager
def _without_observers(model: Callable) -> Iterator[None]:
    """Keep observers of a quantization from recording ranges, which they do in evaluation too.

    It prevents a wrong number: those of fake quantization move what the model predicts next.
    """
    switches: list[Tensor] = []
    observers: list[nn.Module] = []
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if hasattr(module, 'observer_enabled'):
            switches.append(module.observer_enabled)
        elif hasattr(module, 'calculate_qparams') and 'forward' not in vars(module):
            observers.append(module)  # It returns its input.
    values = [switch.clone() for switch in switches]
    try:
        for switch in switches:
            switch.fill_(0)
        for observer in observers:
            observer.forward = _identity
        yield
    finally:
        for switch, value in zip(switches, values, strict=True):
            switch.copy_(value)
        for observer in observers:
            del observer.forward


def _identity(inputs: Tensor) -> Tensor:
    return inputs
