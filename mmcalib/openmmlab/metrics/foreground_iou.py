"""mIoU without the background, as the paper reports it for VOC."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.protocols import BACKGROUND_LABEL, check_background
from mmcalib.openmmlab.metrics.list_metric import ListMetric


@METRICS.register_module()
class ForegroundIoU(ListMetric):
    r"""Mean intersection over union of all classes except the background.

    .. math:: \frac{1}{K - 1} \sum_{k \neq 0} \frac{|P_k \cap G_k|}{|P_k \cup G_k|}

    The key is ``mIoU``, in percent. Pixels of the background count where they are predicted as
    another class. Classes that neither occur nor are predicted are left out. Source: the
    paper's published code; mmseg's ``IoUMetric`` averages over the background too.

    Args:
        **options: ``ignore_index``, as of :class:`CalibrationMetric`, and options of mmengine's
            ``BaseMetric``, such as ``prefix``.

    Raises:
        ValueError: For data with ``reduce_zero_label``, whose class 0 is no background; while
            evaluating, for samples without a segmentation or labels.
    """

    def check_meta(self, meta: Mapping) -> None:
        """Raise a UserError if class 0 is no background."""
        check_background(meta, 'ForegroundIoU', "take dict(type='IoUMetric')")

    def read(self, sample: dict) -> Tensor:
        """Return the pixels of each class that are correct, predicted and labelled, ``(3, K)``."""
        self.check_meta(sample)
        predictions = self.read_predictions(sample)
        if not predictions.are_maps:
            raise UserError(
                f'{predictions.name} is no segmentation: ForegroundIoU is for segmentors'
            )
        valid = predictions.valid
        predicted = predictions.predicted[valid].cpu()
        label = predictions.labels[valid].cpu()
        counts = [
            torch.bincount(classes, minlength=predictions.num_classes)
            for classes in (label[predicted == label], predicted, label)
        ]
        return torch.stack(counts)

    def compute_metrics(self, results: list) -> dict:
        """Return the mIoU of the images of all ranks, in percent."""
        counts = sum(results) if results else torch.zeros(3, 1, device='cpu')
        intersection, predicted, label = counts
        union = predicted + label - intersection
        is_counted = union > 0
        is_counted[BACKGROUND_LABEL] = False
        if not is_counted.any():
            self.log(
                f'no class but the background in {len(results)} images, so mIoU is NaN',
                logging.WARNING,
            )
        ious = intersection[is_counted].double() / union[is_counted]
        return {'mIoU': 100 * ious.mean().item()}
