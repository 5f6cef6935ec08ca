"""Several views of each image, for test-time augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from mmengine.config import Config

from mmcalib.errors import UserError
from mmcalib.options import check_number
from mmcalib.runs.config_tree import find_pipelines, find_toolbox, type_name
from mmcalib.runs.facts import plain

PIPELINES_BEFORE_VIEWS = 'pipelines_before_views'  # the key in a config
# Scales relative to the size that the pipeline gives; many classifiers take one size only.
SEGMENTATION_SCALES = (1.0, 0.75, 1.25)
# Models of the toolboxes that average probabilities, as ours does.
AVERAGING_MODELS = ('AverageClsScoreTTA', 'SegTTAModel')


def set_views(cfg: Config, split: str, scales: Sequence[float] | None = None) -> list[list]:
    """Have a split's data come in several views of each image, for a ``MeanProbabilityModel``.

    They are those of the config's ``tta_pipeline``. Without one, or with scales, the last transform
    of the pipeline is applied to the image and its mirror image, for segmentation at the scales 1,
    0.75 and 1.25 each.

    Args:
        cfg: Config of the run.
        split: ``'val'`` or ``'test'``.
        scales: Scales relative to the size that the pipeline gives, in any order.

    Returns:
        The alternatives of each step in which the views differ, for JSON.

    Raises:
        UserError: If the config's ``tta_model`` merges predictions in a way of its own, scales are
            none above 0 or lack 1 for a segmentation, or the data have no pipeline.
    """
    check_tta_model(cfg)
    is_segmentation = find_toolbox(cfg) == 'mmseg'
    pipeline = None
    if scales is None:
        scales = SEGMENTATION_SCALES if is_segmentation else (1.0,)
        pipeline = cfg.get('tta_pipeline')
    check_scales(scales, is_segmentation=is_segmentation)
    holders = find_pipelines(cfg[f'{split}_dataloader'].dataset)
    if not holders:
        raise UserError(f'--tta: {split}_dataloader.dataset has no pipeline to add views to')
    for holder in holders:
        if pipeline:
            holder.pipeline = deepcopy(pipeline)
        else:
            *before, last = holder.pipeline
            transforms = [*scales_and_flips(scales), [last]]
            holder.pipeline = [*before, dict(type='TestTimeAug', transforms=transforms)]
    return describe_views(holders[0].pipeline)


def check_tta_model(cfg: Config) -> None:
    """Refuse a config whose predictions of views are merged otherwise, for a wrong number."""
    model = cfg.get('tta_model') or {}
    kind = type_name(model.get('type', AVERAGING_MODELS[0]))
    if kind not in AVERAGING_MODELS:
        raise UserError(
            f'--tta: the tta_model {kind} of the config merges predictions in its own way, and '
            'only the mean of probabilities can be measured: remove it (tta_model=None)'
        )


def check_scales(scales: Sequence[float], *, is_segmentation: bool) -> None:
    """Refuse scales of no image, and those without the size of the labels, for a wrong number."""
    for scale in scales:
        check_number('--tta-scales', scale, least=0.01)
    if is_segmentation and 1 not in scales:
        raise UserError(
            f'--tta-scales {" ".join(map(str, scales))}: labels are those of the view at scale 1, '
            'since other scales resize them too: add 1'
        )


def scales_and_flips(scales: Sequence[float]) -> list[list[dict]]:
    """Return the steps of a ``TestTimeAug`` that scale and mirror an image."""
    flips = [dict(type='RandomFlip', prob=probability) for probability in (0.0, 1.0)]
    # The first view is the image as it would be without the others.
    scales = sorted(scales, key=lambda scale: scale != 1)
    if scales == [1]:
        return [flips]
    sizes = [dict(type='Resize', scale_factor=scale, keep_ratio=True) for scale in scales]
    return [sizes, flips]


def describe_views(pipeline: Sequence[dict]) -> list[list]:
    """Return the alternatives of each step of a pipeline that has several, for JSON."""
    views = []
    for transform in pipeline:
        if type_name(transform['type']) == 'TestTimeAug':
            views += [list(step) for step in transform['transforms'] if len(step) > 1]
    return plain(views)
