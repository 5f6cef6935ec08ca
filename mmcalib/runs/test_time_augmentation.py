"""Test-time augmentation: several views of each image in a config's pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from mmengine.config import Config

from mmcalib.checks import check_number
from mmcalib.runs.loss_config import type_name
from mmcalib.runs.training_fingerprint import comparable

# Relative to the size that the pipeline gives; a classifier's input has often to be of one size.
SEGMENTATION_SCALES = (1.0, 0.75, 1.25)
# They average probabilities, as ours does.
AVERAGING = ('AverageClsScoreTTA', 'SegTTAModel')


def add_views(cfg: Config, split: str, scales: Sequence[float] | None = None) -> None:
    """Have a split's data come in several views of each image, for a ``MeanProbabilityModel``.

    They are those of the config's ``tta_pipeline``. Without one, or with scales, the last transform
    of the pipeline is applied to the image and its mirror image, for segmentation at the scales 1,
    0.75 and 1.25 each.

    Args:
        cfg: Of the run.
        split: ``'val'`` or ``'test'``.
        scales: Relative to the size that the pipeline gives, in any order.

    Raises:
        TypeError: If a scale is no number.
        ValueError: If the config's ``tta_model`` merges predictions in a way of its own, scales are
            none above 0 or lack 1 for a segmentation, or the data have no pipeline.
    """
    kind = type_name((cfg.get('tta_model') or {}).get('type', AVERAGING[0]))
    if kind not in AVERAGING:
        raise ValueError(
            f'--tta: the tta_model {kind} of the config merges predictions in its own way, and '
            'only the mean of probabilities can be measured: remove it (tta_model=None)'
        )
    holders = list(_with_pipeline(cfg[f'{split}_dataloader'].dataset))
    if not holders:
        raise ValueError(f'--tta: {split}_dataloader.dataset has no pipeline to add views to')
    for holder in holders:
        if cfg.get('tta_pipeline') and scales is None:
            holder.pipeline = deepcopy(cfg.tta_pipeline)
        else:
            *before, last = holder.pipeline
            views = dict(type='TestTimeAug', transforms=[*_own_views(cfg, scales), [last]])
            holder.pipeline = [*before, views]


def views_of(cfg: Config, split: str) -> list[list]:
    """Return the alternatives of each step in which the views of a split differ, in JSON's types.

    There are as many views as combinations.
    """
    for holder in _with_pipeline(cfg[f'{split}_dataloader'].dataset):
        steps = [step for step in holder.pipeline if type_name(step['type']) == 'TestTimeAug']
        return [
            comparable(list(transforms))
            for step in steps
            for transforms in step['transforms']
            if len(transforms) > 1
        ]
    return []


def _own_views(cfg: Config, scales: Sequence[float] | None) -> list[list[dict]]:
    if scales is None:
        scales = SEGMENTATION_SCALES if cfg.get('default_scope') == 'mmseg' else (1.0,)
    for scale in scales:
        check_number('--tta-scales', scale, least=0.01)
    if cfg.get('default_scope') == 'mmseg' and 1 not in scales:
        raise ValueError(
            f'--tta-scales {" ".join(map(str, scales))}: labels are those of the view at scale 1, '
            'since other scales resize them too: add 1'
        )
    # The first view is the image as it would be without the others.
    scales = sorted(scales, key=lambda scale: scale != 1)
    flips = [dict(type='RandomFlip', prob=prob) for prob in (0.0, 1.0)]
    if tuple(scales) == (1.0,):
        return [flips]
    return [[dict(type='Resize', scale_factor=s, keep_ratio=True) for s in scales], flips]


def _with_pipeline(dataset: object) -> Iterator[Mapping]:
    """Yield the parts of a dataset's config that have the transforms of its images."""
    if isinstance(dataset, (list, tuple)):
        for part in dataset:
            yield from _with_pipeline(part)
    elif isinstance(dataset, Mapping):
        if dataset.get('pipeline'):
            yield dataset
        else:
            yield from _with_pipeline(dataset.get('dataset'))
            yield from _with_pipeline(dataset.get('datasets'))
