"""Transforms for test pipelines of mmseg: at which size it predicts, and what is unseen."""

from __future__ import annotations

from mmengine.registry import TRANSFORMS

from mmcalib.options import check_integer

IGNORED = 255  # by which mmseg's data sets replace what is not in their `classes`


@TRANSFORMS.register_module()
class AtInputSize:
    """Make mmseg predict at the resized size of an image instead of its original one.

    It stands in a test pipeline between ``LoadAnnotations`` followed by ``Resize`` and
    ``PackSegInputs``, so that predictions and resized labels are compared. mmseg brings its logits
    to ``ori_shape``; this replaces it.

    Source: the paper's published code evaluates VOC at a longest side of 480.
    """

    def __call__(self, results: dict) -> dict:
        results['ori_shape'] = results['img_shape']
        return results


@TRANSFORMS.register_module()
class LabelUntrainedClasses:
    """Give a label to the classes that a data set's ``metainfo`` leaves out, which mmseg ignores.

    It stands in a test pipeline before ``LoadAnnotations``, with the `ood_index` that
    :class:`~mmcalib.openmmlab.metrics.OODMetric` has. What has no class at all, such as the
    borders of VOC, stays ignored.

    Args:
        ood_index: The label, from 0 to 254; not that of a trained class.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is out of range; while transforming, if it is a trained class's, or the
            data set leaves no class out, or the labels are loaded already.
    """

    def __init__(self, ood_index: int) -> None:
        self.ood_index = check_integer('ood_index', ood_index, least=0)
        if ood_index >= IGNORED:
            raise ValueError(f'ood_index must be below {IGNORED}, which is ignored: {ood_index}')

    def __call__(self, results: dict) -> dict:
        labels = results.get('label_map') or {}
        known = labels.values()
        if 'gt_seg_map' in results or IGNORED not in known or self.ood_index in known:
            needed = 'it must stand before LoadAnnotations, metainfo.classes leave classes out'
            raise ValueError(f'{needed}, and ood_index={self.ood_index} be new: {labels}')
        # A map of its own: samples may share that of the data set.
        there = {IGNORED: self.ood_index}
        results['label_map'] = {old: there.get(new, new) for old, new in labels.items()}
        return results
