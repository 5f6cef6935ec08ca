"""Transforms for test pipelines of mmseg: the size of its predictions, and labels of OOD pixels."""

from __future__ import annotations

from mmengine.registry import TRANSFORMS

from mmcalib.openmmlab.samples import IGNORE_INDEX
from mmcalib.options import check_integer


@TRANSFORMS.register_module()
class AtInputSize:
    """Transform for mmseg to predict at the resized size of an image instead of its original one.

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
    """Transform that labels the classes which a data set's ``metainfo`` leaves out.

    mmseg ignores these classes otherwise.

    It stands in a test pipeline before ``LoadAnnotations``, with the `ood_index` of
    :class:`~mmcalib.openmmlab.metrics.OODMetric`. Pixels without any class, such as the borders of
    VOC, stay ignored.

    Args:
        ood_index: Label of these classes, from 0 to 254; not that of a trained class.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is out of range; while transforming, if it is a trained class's, or the
            data set leaves no class out, or the labels are loaded already.
    """

    def __init__(self, ood_index: int) -> None:
        self.ood_index = check_integer('ood_index', ood_index, least=0)
        if ood_index >= IGNORE_INDEX:
            raise ValueError(
                f'ood_index must be below {IGNORE_INDEX}, which is ignored: {ood_index}'
            )

    def __call__(self, results: dict) -> dict:
        label_map = results.get('label_map') or {}
        has_untrained = IGNORE_INDEX in label_map.values()
        is_new = self.ood_index not in label_map.values()
        if 'gt_seg_map' in results or not has_untrained or not is_new:
            raise ValueError(
                'it must stand before LoadAnnotations, metainfo.classes leave classes out, and '
                f'ood_index={self.ood_index} be new: {label_map}'
            )
        # Samples may share the map of the data set, so this one is new.
        results['label_map'] = {
            original: self.ood_index if label == IGNORE_INDEX else label
            for original, label in label_map.items()
        }
        return results
