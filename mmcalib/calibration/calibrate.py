"""Calibrating any torch model: its logits read once, a scaling folded into it or attached."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.calibration.choose import FEW_GROUPS, LEAST_GROUPS
from mmcalib.calibration.draw import NUM_SAMPLES, DrawnPredictions, LogitRows, draw
from mmcalib.calibration.effect import before_and_after, worse_figures
from mmcalib.calibration.fit import data_sentences, fit_scaling
from mmcalib.calibration.place import OriginalLogits, place, prove
from mmcalib.errors import UserError
from mmcalib.metrics.names import PREFIX, metric_heading, number_text
from mmcalib.options import check_choice
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput, scaling_module
from mmcalib.posthoc.fit_rows import group_sums
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.model_copy import copy_model
from mmcalib.posthoc.per_label import ScalerPerLabel, shared_sentence
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.groups import check_order, group_numbers
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.predictions.loader import read_loader, reader
from mmcalib.predictions.model_logits import Logits

AUTO = 'auto'


@dataclass
class Calibrated:
    """A calibrated model, and what the calibration did; as text, a table.

    Attributes:
        model: The calibrated copy, in evaluation mode.
        before: Metrics by name, in percent but for NLL and Brier.
        after: The same, each image scored by a scaling that was fitted without its fold.
        errors: The standard errors ``before`` and ``after``, by name, over images or groups.
        scaler: What was fitted to all images; None if the choice fell on no scaling.
        standard_error: Of a temperature, over images or groups; None of other methods.
        folded_into: The layers whose weights are others; none if the scaling is attached.
        attached: Why it is attached; None if it is not.
        difference: The largest difference of a probability of ``model`` from the scaled one, on
            batches from the start to the end of the loader.
        num_predictions: How many were fitted to and measured.
        num_groups: How many images, or groups of them, they are of.
        changed: Of how many of them the predicted class is another.
        candidates: Of ``method='auto'``, see :func:`~mmcalib.calibration.choose.choose_method`.
        information: By how many standard errors the NLL falls as 1/T leaves 0; below 2 the logits
            carry no information about the labels. None of several labels.
        unlabelled: The classes of which there is no label.
    """

    model: nn.Module
    before: dict[str, float]
    after: dict[str, float]
    errors: dict[str, dict[str, float]]
    num_predictions: int
    num_groups: int
    changed: int
    scaler: LogitScaler | ScalerPerLabel | None = None
    standard_error: float | None = None
    folded_into: list[str] = field(default_factory=list)
    attached: str | None = None
    difference: float = 0.0
    candidates: list[dict] = field(default_factory=list)
    information: float | None = None
    unlabelled: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [['', *(metric_heading(f'{PREFIX}{name}') for name in self.before)]]
        for when, figures in (('before', self.before), ('after', self.after)):
            cells = {name: number_text(value, PREFIX + name) for name, value in figures.items()}
            for name, value in self.errors[when].items():
                cells[name] += f' ± {number_text(value, PREFIX + name)}'
            lines.append([when, *cells.values()])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in lines)
        return '\n'.join([*('  '.join(row).rstrip() for row in cells), *self._sentences()])

    def _sentences(self) -> Iterator[str]:
        few = self.num_groups < LEAST_GROUPS
        compared = [f'{c["method"]} {c["nll"]:.4f}' for c in self.candidates if not c['problem']]
        if compared:
            yield f'Cross-validated NLL: {", ".join(compared)};'
            yield (
                FEW_GROUPS if few else 'the first within a standard error of the lowest is chosen.'
            )
        yield from data_sentences(self.information, self.unlabelled, self.before['accuracy'])
        of = f'{self.num_predictions:,} predictions of {self.num_groups:,} images or groups'
        if self.scaler is None:
            reason = 'is chosen' if few else 'improves on none by a standard error'
            yield f'No scaling {reason}, of {of}.'
            return
        name = self.scaler.method
        if name == 'temperature' and not isinstance(self.scaler, ScalerPerLabel):
            name = f'temperature {self.scaler.temperature_:.4g}'
            name += f' ± {self.standard_error:.2g}' if self.standard_error else ''
        yield f'Scaling by {name}, fitted on {of};'
        yield f'before and after are cross-fitted; {self.changed:,} predicted classes change.'
        if isinstance(self.scaler, ScalerPerLabel) and self.scaler.shared_labels:
            yield shared_sentence(self.scaler.shared_labels)
        where = f'Folded into {" and ".join(n or "the model" for n in self.folded_into)}'
        if self.attached:
            where = f'Attached behind the model, because {self.attached}'
        yield f'{where}: its probabilities equal the scaled ones within {self.difference:.1e}.'
        if worse := worse_figures(self.before, self.after):
            yield f'Worse than before: {worse}.'
        if few:
            yield f'Few images or groups ({self.num_groups}) tell little of others: take more.'


def calibrate(
    model: nn.Module,
    loader: Iterable,
    *,
    method: str | LogitScaler = 'temperature',
    logits: Logits | None = None,
    groups: Sequence[Hashable] | None = None,
    ignore_index: int | None = None,
    device: str | torch.device | None = None,
    copy: bool = True,
) -> Calibrated:
    r"""Return a calibrated copy of any torch model, and what its probabilities gained.

    The model runs once over the loader, and the scaling of the least likelihood loss is folded into
    the layer that predicts, which is found by running it: the copy is of the same class, with the
    same keys, and as fast. A scaling that no layer can absorb is attached: then the copy is a
    :class:`~mmcalib.posthoc.attached.CalibratedOutput` around the model. To prove that its
    probabilities are the scaled ones, it runs on up to ten batches: the first, middle and last,
    those with the highest and the lowest logit, and one for each set of layers that ran. Figures
    are cross-fitted over 5 folds of the images.

    The given model, its mode, its hooks and the random states are as before. The order of the
    images does not matter, so the loader may shuffle. Of maps and volumes 200,000 pixels are drawn,
    each as likely as any other, for fit and figures.

    Args:
        model: A classifier or segmentor, of one or several labels, that returns logits.
        loader: Batches of held-out data: ``(inputs, labels)`` or dicts, see
            :mod:`mmcalib.predictions.loader`. Logits are ``(N, K)`` or ``(N, K, *)`` with labels
            ``(N,)`` or ``(N, *)``; K = 1 before a sigmoid. Labels ``(N, L)`` of 0 and 1 are several
            labels, which get a scaling each.
        method: A key of ``mmcalib.posthoc.SCALERS``; ``'auto'`` for the simplest within a standard
            error of the best cross-validated likelihood, below ten groups for a temperature if it
            is above 1 by two standard errors; or a scaler with options.
        logits: Which part of the model's output the logits are; by default its ``logits``, its
            ``['out']``, or the output itself.
        groups: A name for each image, in the order of a loader whose sampler is sequential: images
            of one group, such as slices of a volume or frames of a video, are not independent.
        ignore_index: The label of what to leave out.
        device: Where to run; by default where the model is.
        copy: Whether to leave the given model as it is. False changes its weights, or puts it into
            a :class:`~mmcalib.posthoc.attached.CalibratedOutput`, once all has been proven.

    Raises:
        TypeError: If the model is no ``nn.Module``.
        ValueError: For a model that is calibrated already, cannot be copied, or returns no single
            tensor of logits;
            for batches without labels, labels of one class only or out of range, probabilities or
            NaN in place of logits; for a method that is unknown or not for such a head.
    """
    model = uncalibrated(model)
    scaler = method if isinstance(method, LogitScaler) else None
    if scaler is None and check_choice('method', method, (AUTO, *SCALERS)) != AUTO:
        scaler = SCALERS[method]()
    # Fits need gradients, and a model that is copied in inference mode could not be trained.
    with full_precision(), torch.inference_mode(False), torch.enable_grad():
        if copy:
            model = copy_model(model).eval()
        if device is not None:
            model = model.to(device)
        calibrated = _calibrated(model, loader, scaler, groups, logits, ignore_index)
    calibrated.model.eval()
    return calibrated


def _calibrated(
    model: nn.Module,
    loader: Iterable,
    scaler: LogitScaler | None,
    groups: Sequence[Hashable] | None,
    logits: Logits | None,
    ignore_index: int | None,
) -> Calibrated:
    """Read, fit, measure, place and prove a scaling; None to choose one."""
    if groups is not None:  # before the long part
        check_order(loader)
        if int(group_numbers(groups, len(groups)).max()) == 0:
            raise UserError('all images are of one group: calibrate on two or more')
    kept, sizes = KeptBatches(), []
    options = dict(logits=logits, ignore_index=ignore_index)
    # Closed at once, so that an error does not keep the random states until it is freed.
    with closing(read_loader(model, loader, 'Reading logits', kept, **options)) as batches:
        first = next(batches)
        pixels, several = first[0].ndim > 2, first[0].shape == first[1].shape
        if several:
            if scaler is None:
                raise UserError(
                    f"method={AUTO!r} is for one label: name a method, as 'temperature'"
                )
            scaler = ScalerPerLabel(scaler)
        if scaler:  # before the long part
            scaler.check_head(first[0])
        images = images_of(chain([first], batches), ignore_index, sizes)
        drawn = draw(images, num_samples=NUM_SAMPLES if pixels else float('inf'), seed_of=_seed_of)
    drawn = grouped(drawn, groups, sum(sizes))
    fit = fit_scaling(drawn, scaler, pixels=pixels)
    rows = LogitRows(drawn.logits, drawn.labels, drawn.images)
    groups = int(drawn.images.max()) + 1
    measured = before_and_after([rows], fit.scalers, fit.fold_of, num_groups=groups)
    found = Calibrated(model, **measured, num_groups=groups, scaler=fit.scaler)
    found.information = fit.information
    found.unlabelled = drawn.unlabelled or []
    found.candidates = fit.candidates
    found.standard_error = fit.errors.get('standard_error')
    if found.scaler is None:
        return found

    def run(model: nn.Module, batch: Any, logits: Logits | None = logits) -> list[Tensor]:
        with reader(model, logits=logits, ignore_index=ignore_index) as predict:
            return list(predict(batch)[0])

    placement = place(model, found.scaler, kept, run, sigmoids=several)
    found.folded_into = placement.layers
    found.attached = placement.reason
    found.difference = placement.difference
    if found.attached:
        found.model = CalibratedOutput(model, scaling_module(found.scaler), logits).eval()
        original = OriginalLogits(model, kept, run)
        # The output is logits already, where a function has named them.
        run_attached = partial(run, found.model, logits=None)
        found.difference = prove(original, run_attached, found.scaler)
    for name, tensor in placement.tensors.items():
        parameter = model.get_parameter(name)
        parameter.data = tensor.to(parameter)
    model.calibrated_by = found.scaler.method
    return found


def images_of(
    batches: Iterable[tuple[Tensor, Tensor]], ignore_index: int | None, sizes: list[int]
) -> Iterator[LogitRows]:
    """Yield the valid predictions of each image with maps, or of each batch without.

    Args:
        batches: Logits and labels.
        ignore_index: Of what is left out; of several labels, it becomes -1.
        sizes: To which the number of images of each batch is added.
    """
    for logits, labels in batches:
        places = torch.arange(len(labels), device='cpu') + sum(sizes)
        sizes.append(len(labels))
        several, parts = logits.shape == labels.shape, [(logits, labels, places)]
        if logits.ndim > 2:
            parts = [
                (values.flatten(1).T, own.flatten(), index.expand(own.numel()))
                for values, own, index in zip(logits, labels, places, strict=True)
            ]
        for values, own, index in parts:
            valid = own != ignore_index if ignore_index is not None else own == own
            own = own.masked_fill(~valid, -1) if several else own
            rows = LogitRows(values, own, index)
            yield rows if several else rows.only(valid)


def uncalibrated(model: nn.Module) -> nn.Module:
    """Return a model that can be calibrated; of a compiled one, what was compiled.

    Raises:
        TypeError: If it is no model.
        ValueError: If it is calibrated already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f'model must be a torch.nn.Module, got {type(model).__name__}')
    earlier = getattr(model, 'calibrated_by', None)
    if earlier or any(isinstance(module, AttachedScaling) for module in model.modules()):
        by = f' (by {earlier})' if earlier else ''
        raise UserError(f'the model is calibrated already{by}: give the original')
    return getattr(model, '_orig_mod', model)  # whose layers run


def grouped(
    drawn: DrawnPredictions, groups: Sequence[Hashable] | None, size: int
) -> DrawnPredictions:
    """Return predictions by their groups, or by images in an order that their content decides.

    So folds, and what they add up to, are the same in whatever order the images came.
    """
    number = drawn.images.unique(return_inverse=True)[1]
    if groups is not None:
        number = group_numbers(groups, size)[drawn.images].unique(return_inverse=True)[1]
    else:
        some = torch.arange(1, drawn.logits.shape[1] + 1, dtype=torch.float64, device='cpu').cos()
        labels = drawn.labels.double().reshape(len(number), -1).mean(dim=1)
        number = (
            group_sums(drawn.logits.double() @ some + labels, number).argsort().argsort()[number]
        )
    order = number.argsort(stable=True)
    columns = (x[order] for x in (drawn.logits, drawn.labels, number))
    return replace(drawn, **dict(zip(('logits', 'labels', 'images'), columns, strict=True)))


def _seed_of(rows: LogitRows) -> int:
    return zlib.crc32(rows.labels.cpu().numpy().tobytes())
