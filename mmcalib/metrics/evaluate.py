"""All metrics of a model of any library, in one pass over a loader."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing

import torch

from mmcalib.metrics.measure import check_groups_option, measure
from mmcalib.metrics.measurement import DEFAULT_METRICS
from mmcalib.metrics.streaming import StreamingMetrics, Values
from mmcalib.options import suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.batches import Unpack
from mmcalib.predictions.distributed import gather_one_process
from mmcalib.predictions.find_logits import Logits
from mmcalib.predictions.group_names import group_numbers
from mmcalib.predictions.loader import read_loader
from mmcalib.predictions.model_inputs import model_remedy


@suggests_arguments
def evaluate(
    model_or_probs: Callable | Array,
    loader_or_labels: Iterable | Array,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    *,
    interval: float | None = None,
    groups: Sequence[Hashable] | None = None,
    ignore_index: int | None = None,
    unpack: Unpack | None = None,
    logits: Logits | None = None,
    device: str | torch.device | None = None,
    num_bins: int = 15,
    protocol: str = 'pooled',
    boundary_width: int = 3,
) -> Values:
    """Return the metrics of a model: :func:`measure` of its predictions for a loader's batches.

    They are exact, take one pass, and keep small tables of each image in memory: pixels are counted
    as ``CalibrationMetric`` counts them, by the same names and units. The order of the images
    changes no value, so the loader may shuffle; the ends of an interval move as by another seed.
    The model predicts in evaluation mode; its modes and the random state are afterwards as before.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> model, images = torch.nn.Linear(3, 2), torch.eye(3)
    >>> loader = DataLoader(TensorDataset(images, torch.tensor([0, 1, 1])), batch_size=2)
    >>> sorted(evaluate(model, loader, ['ECE', 'NLL']))
    ['ECE', 'NLL']

    Args:
        model_or_probs: A module, or a function of the inputs, that returns logits ``(N, K)``, maps
            ``(N, K, H, W)`` or volumes ``(N, K, D, H, W)`` of them; K = 1, or ``(N, L)`` with
            labels ``(N, L)``, for those of a sigmoid. Or probabilities, as :func:`measure` takes
            them.
        loader_or_labels: Batches ``(inputs, labels)``, or dicts with labels, as
            :mod:`mmcalib.predictions.loader` reads them; others need `unpack`. Or labels,
            as :func:`measure` takes them.
        metrics: A name, for its value alone if there is no `interval`, or several.
        interval: Level of intervals over images or `groups`, as in :func:`measure`.
        groups: Group of each image, in the order of a loader whose sampler is sequential.
        ignore_index: Label of the predictions that are not valid; None for none.
        unpack: Function from a batch to its inputs and labels, such as
            ``lambda batch: (batch['pixels'], batch['mask'])``.
        logits: Function from the model's output to its logits, such as
            ``lambda output: output[0]``; by default its ``logits``, its ``['out']``, or the output.
        device: Device to predict on; None for that of the model.
        num_bins: B.
        protocol: Name of the rule that says which pixels of maps or volumes count, and what is
            averaged, such as ``'image'``, as in ``CalibrationMetric``; ``'paper'`` takes images in
            the order of the loader.
        boundary_width: Width of the protocol ``'boundary'``, in pixels.

    Raises:
        TypeError: For `unpack`, `logits`, a `device` or a `protocol` without a model, a name or a
            state dict in place of one, and as in :func:`measure`.
        ValueError: For batches whose inputs or labels are not known, labels out of range, or an
            output that is not one tensor of finite logits of the labels' size; and as in
            :func:`measure`.
    """
    if isinstance(model_or_probs, type):
        name = model_or_probs.__name__
        raise TypeError(f'a model must be a module or a function, got the class {name}: build it')
    if not callable(model_or_probs):
        functions_are_given = unpack is not None or logits is not None
        if functions_are_given or device is not None or protocol != 'pooled':
            raise TypeError(
                'unpack, logits, device and protocol go with a model, not with probabilities'
            )
        name = type(model_or_probs).__name__
        if callable(loader_or_labels):
            raise TypeError(f'the model comes first, as evaluate(model, loader), got {name}')
        remedy = model_remedy(model_or_probs)
        if remedy:
            raise TypeError(f'a model must be a module or a function, got {name}{remedy}')
        if isinstance(model_or_probs, (str, Mapping)):
            raise TypeError(
                f'a model must be a module or a function, got {name}: '
                'build the model, and load its state dict into it'
            )
        return measure(
            model_or_probs,
            loader_or_labels,
            metrics,
            num_bins=num_bins,
            ignore_index=ignore_index,
            interval=interval,
            groups=groups,
        )
    stream = StreamingMetrics(
        metrics,
        num_bins=num_bins,
        protocol=protocol,
        boundary_width=boundary_width,
        interval=interval,
        gather=gather_one_process,
    )
    check_groups_option(groups, interval, protocol)
    if groups is not None:
        group_numbers(groups, len(groups), loader_or_labels)
    batches = read_loader(
        model_or_probs,
        loader_or_labels,
        'Evaluating',
        unpack=unpack,
        logits=logits,
        ignore_index=ignore_index,
        device=device,
    )
    with closing(batches):  # An error gives the random states back at once.
        for predictions in batches:
            stream.add(predictions)
    return stream.compute(groups)
