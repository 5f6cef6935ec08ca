"""The predictions of a split, measured as they are and scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mmengine.dist import all_gather_object
from torch import Tensor, nn

from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.metrics import CalibrationMetric
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.attached import attached, calibrate_sample, evaluated_sample
from mmcalib.posthoc.draw import ImageLogits
from mmcalib.samples.reading import read_labels
from mmcalib.samples.writing import temper

# Scales the data sample of an image in place.
Scaling = Callable[[ImageLogits], None]
COMPARED = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


def member_of(model: nn.Module) -> nn.Module:
    """Return a model, or the first member of a mean."""
    return model.module if isinstance(model, MeanProbabilityModel) else model


def ignore_index_of(model: nn.Module) -> int:
    """Return the label of the pixels that a model's loss leaves out."""
    index = getattr(head_of(member_of(model)), 'ignore_index', None)
    return 255 if index is None else index


def scaling_of(model: nn.Module, scaler: LogitScaler) -> Scaling:
    """Return what scales the data sample of an image, as the calibrated model will."""
    if isinstance(model, MeanProbabilityModel):
        return lambda image: temper(image.predicted, scaler.temperature_, threshold=model.threshold)
    module = attached(scaler)
    return lambda image: calibrate_sample(model, image.predicted, module, image.logits)


def before_and_after(
    model: nn.Module,
    images: Iterable[tuple[int, ImageLogits]],
    size: int,
    scaling_at: Callable[[int], Scaling],
    *,
    num_bins: int,
) -> dict:
    """Measure predictions as they are and scaled.

    Args:
        model: That made them.
        images: Of :func:`~mmcalib.posthoc.draw.predictions`; their data samples are scaled.
        size: Of the data set.
        scaling_at: From the place of an image in it to a scaling, such as that of its fold.
        num_bins: Of ECE and AECE.

    Returns:
        Metrics ``before`` and ``after`` by name, in percent but for NLL and Brier;
        ``num_predictions``, how many are valid; ``changed``, of how many of them the predicted
        class is another.
    """
    ignore_index = ignore_index_of(model)
    options = dict(num_bins=num_bins, ignore_index=ignore_index)
    before, after = (CalibrationMetric(COMPARED, **options) for _ in range(2))
    total = changed = 0
    for place, image in images:
        scaling_at(place % size)(image)
        now = evaluated_sample(model, image.predicted)
        before.process(None, [image.sample])
        after.process(None, [now])
        if place < size:
            old, new = (_predicted(sample, ignore_index) for sample in (image.sample, now))
            total += len(old)
            changed += int((old != new).sum())
    figures = [
        {key.split('/')[-1]: value for key, value in metric.evaluate(size).items()}
        for metric in (before, after)
    ]
    total, changed = map(sum, zip(*all_gather_object((total, changed)), strict=True))
    return dict(before=figures[0], after=figures[1], num_predictions=total, changed=changed)


def _predicted(sample: dict, ignore_index: int) -> Tensor:
    if 'pred_sem_seg' in sample:
        return read_labels(sample, ignore_index=ignore_index, name='a sample')[0]
    return sample['pred_label']
