"""Neighbours of a pixel in a map of labels, with borders and ignored pixels defined."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.losses.calibration_loss import CalibrationLoss


def shares_around(labels: Tensor, valid: Tensor, num_classes: int, kernel: Tensor) -> Tensor:
    """Return the share of each class around every pixel, ``(N, K, H, W)``.

    Pixels beyond the border of the image and ignored ones have no label, so they count neither for
    a class nor in the sum of the weights: the shares of a valid pixel add up to 1 everywhere.

    Args:
        labels: ``(N, H, W)`` int64, in [0, K); any label where ignored.
        valid: ``(N, H, W)``, False where ignored.
        num_classes: K.
        kernel: ``(S, S)`` weights of odd S, that of the pixel itself in the middle.
    """
    height, width = labels.shape[1:]
    padding = [len(kernel) // 2] * 4
    valid_weight = F.pad(valid.to(kernel.dtype), padding).unsqueeze(1)
    labels = F.pad(labels, padding).unsqueeze(1)
    shares = valid_weight.new_zeros(len(labels), num_classes, height, width)
    total = valid_weight.new_zeros(len(labels), 1, height, width)
    # Each neighbour adds to one class of a pixel, where a convolution would go through all of them.
    for index in range(kernel.numel()):  # PyTorch 2.6 compiles no itertools.product.
        down, right = divmod(index, len(kernel))
        pixels = (..., slice(down, down + height), slice(right, right + width))
        weight = valid_weight[pixels] * kernel[down, right]
        shares.scatter_add_(1, labels[pixels], weight)
        total += weight
    # Only an ignored pixel has no valid one around it, so its shares do not matter.
    return shares.div_(total.masked_fill(total == 0, 1))


class NeighbourLoss(CalibrationLoss):
    """Base of the losses whose formula takes `neighbours`, the class shares around every pixel.

    They are computed once, before the formula, since a compiler would go through all classes for
    each neighbour. A subclass gives their weights by its method ``kernel``.
    """

    soft_targets = False

    def prepare_call(self, pred, target, weight, ignore_index) -> tuple[Tensor, Tensor, dict]:
        """Check a call, and add the neighbours to the options of the formula.

        Raises:
            ValueError: For rows, which have no neighbours, and as other losses do.
        """
        if pred.ndim != 4:
            raise UserError(
                f'{type(self).__name__} looks at the neighbours of a pixel, so pred must be maps '
                f'(N, K, H, W); got {tuple(pred.shape)}. For rows, use another loss, such as '
                'MarginLabelSmoothingLoss'
            )
        labels, valid, options = super().prepare_call(pred, target, weight, ignore_index)
        kernel = self.kernel().to(pred.device, torch.promote_types(pred.dtype, torch.float32))
        options['neighbours'] = shares_around(labels, valid, pred.shape[1], kernel)
        return labels, valid, options
