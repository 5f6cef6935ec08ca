"""The steps of every calibration: read, draw, group, refuse, fit, place and measure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from mmcalib.calibration.calibrated import Calibrated
from mmcalib.calibration.choose import default_scaler
from mmcalib.calibration.data_checks import check_determined, logit_information
from mmcalib.calibration.draw import draw_predictions
from mmcalib.calibration.effect import measure_effect
from mmcalib.calibration.fit import Fit, fit_scaling
from mmcalib.calibration.groups import independent_groups, sort_by_group
from mmcalib.calibration.loader_source import LoaderSource
from mmcalib.calibration.place import OriginalLogits, place, place_on_all_processes, prove
from mmcalib.calibration.source import Source
from mmcalib.errors import UserError
from mmcalib.names import AUTO, NUM_SAMPLES
from mmcalib.options import check_choice, suggests_arguments
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput, scaling_module
from mmcalib.posthoc.class_prior import check_class_prior, check_has_shift, shift_class_prior
from mmcalib.posthoc.masked_classes import check_no_masked_class
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.model_copy import copy_model, refused_calls
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.arrays import Array, as_tensor
from mmcalib.predictions.batches import Unpack
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.groups import group_numbers
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.model_inputs import model_remedy
from mmcalib.predictions.model_logits import Logits
from mmcalib.predictions.ranks import gather_one_process
from mmcalib.tensors import MOST_EXAMPLES


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
    r"""Return a calibrated copy of any torch model, with its metrics before and after.

    The model runs once over the loader, and the scaling with the lowest NLL is folded into
    the layer that predicts, which is found by running it: the copy is of the same class, with the
    same keys, and as fast. A scaling that no layer can absorb is attached: then the copy is a
    :class:`~mmcalib.posthoc.attached.CalibratedOutput` around the model. To prove that its
    probabilities are the scaled ones, it runs on up to ten batches: the first, middle and last,
    those with the highest and the lowest logit, and one for each set of layers that ran; and on up
    to 128 single images at equal distances over the whole pass. The text says on how many images
    that was. Figures are cross-fitted over 5 folds of the images.

    The given model, its mode, its hooks and the random states are as before. The order of the
    images does not matter, so the loader may shuffle. Of maps and volumes 200,000 pixels are drawn,
    each as likely as any other, for fit and figures.

    Args:
        model: A classifier or segmentor, of one or several labels, that returns logits.
        loader: Batches of held-out data: ``(inputs, labels)`` or dicts, see
            :mod:`mmcalib.predictions.loader`; others need `unpack`. Logits are ``(N, K)`` or
            ``(N, K, *)`` with labels ``(N,)`` or ``(N, *)``; K = 1 before a sigmoid. Labels
            ``(N, L)`` of 0 and 1 are several labels, which get a scaling each.
        method: A key of ``mmcalib.posthoc.SCALERS``; or a scaler with options; or ``'auto'`` for
            the simplest method within one standard error of the best cross-validated likelihood.
            With fewer than ten groups, auto takes a temperature, and only if it is above 1 by two
            standard errors. None is a temperature, and for sigmoids ``'platt'``, which also mends
            their rate of positives, and can change predicted classes.
        unpack: A function from a batch to its inputs and labels, such as
            ``lambda batch: (batch['pixels'], batch['mask'])``.
        logits: A function that takes the logits out of the model's output; by default they are its
            ``logits``, its ``['out']``, or the output itself.
        groups: A name for each image, in the order of a loader whose sampler is sequential: images
            of one group, such as slices of a volume or frames of a video, are not independent.
        ignore_index: The label of what to leave out.
        class_prior: ``(K,)`` frequencies of the classes where the model will be used, of one
            sigmoid those of 0 and of 1, see :func:`~mmcalib.posthoc.shift_class_prior`; None if
            they are those of the held-out data.
        device: Where to run; by default where the model is.
        copy: Whether to leave the given model as it is. False changes its weights, or puts it into
            a :class:`~mmcalib.posthoc.attached.CalibratedOutput`, once all has been proven.

    Raises:
        TypeError: If the model is no ``nn.Module``, the method a class, or the loader a data set.
        UserError: For a model that is calibrated already, cannot be copied, or returns no single
            tensor of logits; for batches whose inputs or labels are not known, labels of one class
            only or out of range, probabilities or NaN in place of logits; for a method that is
            unknown or not for such a head.
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
    if groups is not None:  # Checked before the long part.
        if len(groups) == 0:
            raise UserError('groups is empty: name the group of each image, or leave it out')
        if int(group_numbers(groups, len(groups), loader).max()) == 0:
            raise UserError('all images are of one group: calibrate on two or more')
    source = LoaderSource(loader, unpack=unpack, logits=logits, ignore_index=ignore_index)
    # Fits need gradients. A model that is copied in inference mode could never be trained.
    with ExitStack() as contexts:
        contexts.enter_context(full_precision())
        contexts.enter_context(torch.inference_mode(False))
        contexts.enter_context(torch.enable_grad())
        if copy:
            given_model = model
            model = copy_model(given_model).eval()
            contexts.enter_context(refused_calls(given_model, model))
        if device is not None:
            model = model.to(device)
        calibrated = calibrate_source(model, source, method, groups=groups, class_prior=class_prior)
        calibrated.model = apply_placement(model, calibrated, source)
    calibrated.model.eval()
    return calibrated


def calibrate_source(
    model: nn.Module,
    source: Source,
    method: str | LogitScaler | None,
    *,
    groups: Sequence[Hashable] | Tensor | None = None,
    class_prior: Array | None = None,
    num_samples: int | None = None,
    cross_fit: bool | str = True,
    measure_all: bool = False,
    find_place: bool = True,
    needs_information: bool = True,
    num_bins: int = 15,
    seed: int = 0,
) -> Calibrated:
    """Read, draw, group, refuse, fit, place and measure: what every calibration does.

    All processes have to call it, and all get the same result.

    Args:
        model: The model, in evaluation mode, which stays as it is.
        source: Held-out images.
        method: See :func:`calibrate`.
        groups: The group of each image in the order of the data; None if every image is one.
        class_prior: See :func:`calibrate`.
        num_samples: The number of predictions to draw at most; None for 200,000 pixels, or all
            classified images.
        cross_fit: Whether each image is scored by a scaling that was fitted without its fold;
            ``'if cheap'`` to do so only if it takes at most about a minute.
        measure_all: Whether the metrics are of all predictions, for which maps are read twice, and
            not of those drawn.
        find_place: Whether to find the place of the scaling in the model.
        needs_information: Whether to refuse logits that say nothing about the labels; False for a
            smoke run, which only shows that all works.
        num_bins: The number of bins of ECE and AECE.
        seed: The seed of the draw and of the folds.

    Raises:
        UserError: For data that determine no scaling, and a method that is not for such a head.
    """
    with closing(source.read(model, 'Reading logits')) as batches:
        first = next(batches)
        pixels = first.are_maps
        several_labels = first.several_labels
        scaler = scaler_for_head(method, first)
        if class_prior is not None:
            check_prior_of_head(class_prior, first)
            if scaler is not None:
                check_has_shift(scaler)
        if num_samples is None:
            num_samples = NUM_SAMPLES if pixels else math.inf
        all_batches: Iterable[ImagePredictions] = chain([first], batches)
        if isinstance(scaler, LogitScaler) and not scaler.takes_masked_classes:
            all_batches = unmasked(all_batches, scaler.method)
        if measure_all and not pixels:
            all_batches = list(all_batches)  # Rows are small, so they are kept and not read twice.
        draw = draw_predictions(all_batches, source, num_samples=num_samples, seed=seed)
    given_groups = None if groups is None else group_numbers(groups, draw.num_images)
    independent = independent_groups(draw, source, given_groups, pixels=pixels)
    draw, independent = sort_by_group(draw, independent)
    information = logit_information(draw, independent.index)
    check_determined(draw, information if needs_information else None, pixels=pixels)
    fit = fit_scaling(
        draw,
        independent,
        scaler,
        pixels=pixels,
        cross_fit=cross_fit,
        shifts_prior=class_prior is not None,
        seed=seed,
    )
    unshifted = fit.scaler
    if class_prior is not None:
        fit = shift_fit(fit, class_prior, draw.labels)
    placement = None
    if find_place and fit.scaler is not None:
        original = OriginalLogits(model, source.kept, source.run)
        placement = place_on_all_processes(
            partial(place, original, fit.scaler, sigmoids=several_labels), source.gather
        )
        source.kept = original.batches
        # A sampler may repeat images to fill up the share of a process.
        num_proven = sum(source.gather(original.num_images))
        placement.num_images = min(num_proven, draw.num_images)
        source.use_placement(placement)
    fold_of_image = None
    if fit.fold_of_group is not None:
        fold_of_image = fit.fold_of_group[independent.of_image]
    measured: Iterable[ImagePredictions] = [draw.rows]
    gather = gather_one_process  # All processes have all that was drawn.
    if measure_all:
        measured = source.read(model, 'Before and after') if pixels else all_batches
        gather = source.gather
    effect = measure_effect(
        measured,
        fit.scalers,
        fold_of_image,
        independent.of_image,
        returned_scaler=fit.scaler,
        threshold=source.threshold,
        num_bins=num_bins,
        gather=gather,
    )
    return Calibrated(
        scaler=fit.scaler,
        effects={'fitted': effect},
        num_images=draw.num_images,
        num_groups=independent.count,
        population=draw.population,
        num_fitted=int(draw.rows.valid.sum()),
        num_folds=fit.num_folds,
        seed=seed,
        num_bins=num_bins,
        groups_are_runs=independent.are_runs,
        placement=placement,
        fit_errors=fit.errors,
        candidates=fit.candidates,
        information=information,
        majority=effect.majority,
        unlabelled=draw.unlabelled or [],
        class_prior=None if class_prior is None else as_tensor('class_prior', class_prior).tolist(),
        unshifted=unshifted,
    )


def check_prior_of_head(class_prior: Array, predictions: ImagePredictions) -> None:
    """Raise a UserError for frequencies that are not of the classes of a head."""
    if predictions.several_labels:
        raise UserError(
            'class_prior is of one label: calibrate each label by itself, with '
            'logits=lambda output: output[:, i]'
        )
    check_class_prior('class_prior', class_prior, num_classes=predictions.num_classes)


def shift_fit(fit: Fit, class_prior: Array, labels: Tensor) -> Fit:
    """Return a fit whose scaling of the model is shifted; those that score predictions stay.

    Args:
        fit: The fit.
        class_prior: The frequencies of the classes in use, ``(K,)``.
        labels: The labels of the fit, ``(M,)``.
    """
    scaler = fit.scaler
    if scaler is None:
        scaler = TemperatureScaler.from_parameters({'temperature': 1.0})
    num_classes = len(as_tensor('class_prior', class_prior))
    frequencies = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    if (frequencies == 0).any():
        missing = (frequencies == 0).nonzero()[:, 0].tolist()
        raise UserError(
            f'class_prior needs a label of each class in the held-out data, and there is none of '
            f'{missing[:MOST_EXAMPLES]}'
        )
    return replace(fit, scaler=shift_class_prior(scaler, class_prior, frequencies), errors={})


def unmasked(batches: Iterable[ImagePredictions], method: str) -> Iterator[ImagePredictions]:
    """Yield batches, and refuse one with a masked class at once, before the rest is read."""
    for batch in batches:
        if len(batch):
            check_no_masked_class(batch.logits, method)
        yield batch


def scaler_for_head(
    method: str | LogitScaler | None, predictions: ImagePredictions
) -> Scaler | None:
    """Return a scaler for a head: of several labels, one for each; None if it is to be chosen.

    Raises:
        UserError: If the method is not for such a head.
    """
    if method == AUTO:
        return None
    if method is None:
        scaler = default_scaler(predictions.logits.shape[1])
    elif isinstance(method, LogitScaler):
        scaler = method
    else:
        scaler = SCALERS[method]()
    if predictions.several_labels:
        per_label = ScalerPerLabel(scaler)
        per_label.check_head(predictions.logits[:, 0])
        return per_label
    scaler.check_head(predictions.logits)
    return scaler


def apply_placement(model: nn.Module, calibrated: Calibrated, source: LoaderSource) -> nn.Module:
    """Put a scaling into a model, or behind it, and return what predicts scaled probabilities."""
    placement = calibrated.placement
    if placement is None:
        return model
    if placement.reason is not None:
        original = OriginalLogits(model, source.kept, source.run)
        wrapped = CalibratedOutput(model, scaling_module(calibrated.scaler), source.logits).eval()
        run_calibrated = partial(source.run_calibrated, wrapped)
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
