"""The calibration of any torch model: read, draw, fit, cross-fit, place and measure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial

import torch
from torch import nn

from mmcalib.calibration.before_after import measure_effect
from mmcalib.calibration.calibrated import Calibrated, result
from mmcalib.calibration.cross_fit import cross_fit
from mmcalib.calibration.data_checks import check_determined, check_information, check_order
from mmcalib.calibration.draw import Draw
from mmcalib.calibration.find_layer import find_place
from mmcalib.calibration.fit import checked_batches, fit_scaling
from mmcalib.calibration.held_out import draw_held_out
from mmcalib.calibration.loader_source import LoaderSource
from mmcalib.calibration.prove import OriginalLogits, prove
from mmcalib.choices import AUTO
from mmcalib.errors import UserError
from mmcalib.options import check_choice, suggests_arguments
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput, scaling_module
from mmcalib.posthoc.class_prior import check_class_prior
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.model_copy import copy_model, refused_calls
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.batches import Unpack
from mmcalib.predictions.find_logits import Logits
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.group_names import group_numbers
from mmcalib.predictions.model_inputs import model_remedy


@suggests_arguments
def calibrate(
    model: nn.Module,
    loader: Iterable,
    *,
    method: str | LogitScaler | None = None,
    unpack: Unpack | None = None,
    logits: Logits | None = None,
    groups: Sequence[Hashable] | None = None,
    ignore_index: int | None = None,
    class_prior: Array | None = None,
    device: str | torch.device | None = None,
    copy: bool = True,
) -> Calibrated:
    """Return a calibrated copy of any torch model, with its metrics before and after.

    The scaling with the lowest NLL is folded into the layer that predicts, so that class, keys and
    speed stay; or, where none can absorb it, attached behind the model by a
    :class:`~mmcalib.posthoc.attached.CalibratedOutput`. Running it proves the probabilities.
    Figures are cross-fitted; of maps 200,000 pixels are drawn.

    Args:
        model: A classifier or segmentor that returns logits.
        loader: Held-out batches in any order, see :mod:`mmcalib.predictions.loader`: logits
            ``(N, K)`` or ``(N, K, *)`` with labels ``(N,)`` or ``(N, *)``, K = 1 before a sigmoid.
            Labels ``(N, L)`` of 0 and 1 are several, which get a scaling each.
        method: A key of ``mmcalib.posthoc.SCALERS``, a scaler, or ``'auto'``: the simplest within
            one standard error of the best cross-validated likelihood. None is ``'platt'`` for
            sigmoids and two classes, which can change predicted classes, else ``'temperature'``.
        unpack: A function from a batch to its inputs and labels.
        logits: A function from the model's output to its logits; by default its ``logits``, its
            ``['out']``, or itself.
        groups: A name for each image, in the order of a loader that does not shuffle: those of one
            group, such as frames of a video, are not independent.
        ignore_index: The label of what to leave out.
        class_prior: ``(K,)`` frequencies of the classes in use, of one sigmoid those of 0 and 1;
            None for those of the held-out data.
        device: Where to run; by default where the model is.
        copy: False changes the given model, once all is proven.

    Raises:
        TypeError: If the model is no ``nn.Module``, the method a class, or the loader a data set.
        UserError: For a model that is calibrated already or cannot be copied; for batches, labels
            or a method that do not fit.
    """
    if isinstance(loader, nn.Module):
        raise TypeError('the model comes first, as calibrate(model, loader)')
    model = unwrap_uncalibrated(model)
    if isinstance(method, type) and issubclass(method, LogitScaler):
        raise TypeError(
            f'method must be a name or a scaler, got the class {method.__name__}: give '
            f'{method.method!r} or {method.__name__}()'
        )
    if method is not None and not isinstance(method, LogitScaler):
        check_choice('method', method, (AUTO, *SCALERS))
    if class_prior is not None:
        check_class_prior('class_prior', class_prior)
    if groups is not None:
        check_group_names(groups, loader)
    source = LoaderSource(loader, unpack=unpack, logits=logits, ignore_index=ignore_index)
    # Fits need gradients. A model that is copied in inference mode could never be trained.
    with ExitStack() as contexts:
        contexts.enter_context(full_precision())
        contexts.enter_context(torch.inference_mode(False))
        contexts.enter_context(torch.enable_grad())
        given_model = None
        if copy:
            given_model = model
            model = copy_model(given_model).eval()
            contexts.enter_context(refused_calls(given_model, model))
        if device is not None:
            model = model.to(device)
        with closing(source.read(model, 'Reading logits')) as batches:
            checked = checked_batches(batches, method, class_prior)
            data = draw_held_out(checked, source, groups=groups)
        check_determined(data)
        check_information(data)
        fitted = fit_scaling(data, method, class_prior)
        check_order(fitted.unshifted, data)
        scalings = cross_fit(fitted.unshifted, data)
        placement = find_place(model, fitted.scaler, data, source, given_model)
        effect = measure_effect(
            [data.draw.rows],
            scalings,
            data.groups.of_image,
            returned_scaler=fitted.scaler,
            threshold=source.threshold,
        )
        unit = unit_of_rows(data.draw)
        calibrated = result(data, fitted, scalings, effect, placement, unit=unit)
        calibrated.model = apply_placement(model, calibrated, source)
    calibrated.model.eval()
    return calibrated


def check_group_names(groups: Sequence[Hashable], loader: Iterable) -> None:
    """Refuse names of groups by which nothing can be fitted, before the model runs."""
    if len(groups) == 0:
        raise UserError('groups is empty: name the group of each image, or leave it out')
    if int(group_numbers(groups, len(groups), loader).max()) == 0:
        raise UserError('all data are of one group: calibrate on two or more')


def unit_of_rows(draw: Draw) -> str:
    """Return what each input of a loader is: rows may be of images, tables, or texts."""
    if draw.pixels:
        return 'image'
    return 'row' if draw.rows.several_labels else 'prediction'


def apply_placement(model: nn.Module, calibrated: Calibrated, source: LoaderSource) -> nn.Module:
    """Put a scaling into a model, or behind it, and return what predicts scaled probabilities."""
    placement = calibrated.placement
    if placement is None:
        return model
    if placement.reason is not None:
        original = OriginalLogits(model, source.kept, source.run)
        wrapped = CalibratedOutput(model, scaling_module(calibrated.scaler), source.logits).eval()
        # Where a function names the logits, the output of the wrapped model is the logits alone.
        wrapped_source = LoaderSource(source.loader, unpack=source.unpack)
        run_calibrated = partial(wrapped_source.run, wrapped)
        placement.difference = prove(original, run_calibrated, calibrated.scaler)
        model.calibrated_by = calibrated.method
        return wrapped
    for name, tensor in placement.tensors.items():
        parameter = model.get_parameter(name)
        parameter.data = tensor.to(parameter)
    model.calibrated_by = calibrated.method
    return model


def unwrap_uncalibrated(model: nn.Module) -> nn.Module:
    """Return a model that can be calibrated; of a compiled one, what was compiled.

    Raises:
        TypeError: If it is no model.
        ValueError: If it is calibrated already.
    """
    if not isinstance(model, nn.Module):
        name = type(model).__name__
        raise TypeError(f'model must be a torch.nn.Module, got {name}{model_remedy(model)}')
    earlier = getattr(model, 'calibrated_by', None)
    if earlier or any(isinstance(module, AttachedScaling) for module in model.modules()):
        by = f' (by {earlier})' if earlier else ''
        raise UserError(f'the model is calibrated already{by}: give the original')
    return getattr(model, '_orig_mod', model)  # Hooks see the layers of the original module.
