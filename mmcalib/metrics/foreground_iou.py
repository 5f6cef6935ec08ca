"""mIoU without the background, as the paper reports it for VOC."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS

from mmcalib.metrics.protocols import BACKGROUND
from mmcalib.samples.reading import name_of, read_labels


@METRICS.register_module()
class ForegroundIoU(BaseMetric):
    r"""Mean intersection over union of all classes except the background.

    .. math:: \frac{1}{K - 1} \sum_{k \neq 0} \frac{|P_k \cap G_k|}{|P_k \cup G_k|}

    The key is ``mIoU``, in percent. Pixels of the background count where they are predicted as
    another class, and classes that neither occur nor are predicted are left out. Source: the
    paper's published code; mmseg's ``IoUMetric`` averages over the background too.

    Args:
        ignore_index: Label of the pixels to leave out.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Prefix of the key.
        collect_dir: See mmengine's ``BaseMetric``.

    Raises:
        ValueError: While evaluating, for samples without a segmentation or labels.
    """

    def __init__(
        self,
        *,
        ignore_index: int = 255,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        self.ignore_index = ignore_index

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add the counts of each image, ``(3, K)``, in which both, predicted or labelled are k."""
        for sample in data_samples:
            name = name_of(sample, len(self.results))
            predicted, label = read_labels(sample, ignore_index=self.ignore_index, name=name)
            counted = (label[predicted == label], predicted, label)
            last = max((int(values.max()) for values in counted if values.numel()), default=0)
            counts = [torch.bincount(values, minlength=last + 1) for values in counted]
            self.results.append(torch.stack(counts))

    def compute_metrics(self, results: list) -> dict:
        """Return the mIoU of the images of all ranks, in percent."""
        size = max((counts.shape[1] for counts in results), default=1)
        total = torch.zeros(3, size, dtype=torch.float64)
        for counts in results:
            total[:, : counts.shape[1]] += counts
        both, predicted, label = total
        union = predicted + label - both
        classes = union > 0
        classes[BACKGROUND] = False
        if not classes.any():
            print_log(
                f'ForegroundIoU: no class but the background in {len(results)} images, so mIoU is '
                'NaN',
                logger='current',
                level=logging.WARNING,
            )
        return {'mIoU': 100 * (both[classes] / union[classes]).mean().item()}
