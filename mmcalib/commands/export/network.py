"""All that a toolbox does between pixels and probabilities, as one module to be exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import has_several_labels, returns_scores

# The option of a data preprocessor that reverses the channels, as the toolboxes' versions call it.
REVERSES = ('to_rgb', 'channel_conversion', '_channel_conversion')


class PredictingNetwork(nn.Module):
    """From pixels to the probabilities of a model's predictions, or to their logits.

    The data preprocessor's steps are part of it: it reverses the channels, normalises and pads. So
    is an attached calibration. A binary head of one channel has two classes here.

    Args:
        model: Of mmpretrain or mmseg, in evaluation.
        logits: Whether it returns logits; their softmax, or sigmoid where an image has several
            labels, are the probabilities.

    Shape:
        ``(N, C, H, W)`` float32, as the test pipeline returns images → ``(N, K)`` of a classifier,
        ``(N, K, H, W)`` of a segmentor.

    Raises:
        UserError: If the model predicts otherwise: in windows, or by the classes of masks.
    """

    def __init__(self, model: nn.Module, *, logits: bool = False) -> None:
        super().__init__()
        _check_exportable(model)
        self.model = model
        self.logits = logits
        self.output = 'logits' if logits else 'probabilities'
        self.segments = hasattr(model, 'encode_decode')
        self.several_labels = has_several_labels(model)

    def forward(self, pixels: Tensor) -> Tensor:
        logits = self._segmented(pixels) if self.segments else self._classified(pixels)
        return logits if self.logits else self.probabilities(logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of what the model predicts, of its logits."""
        return logits.sigmoid() if self.several_labels else logits.softmax(dim=1)

    def _segmented(self, pixels: Tensor) -> Tensor:
        padding = self.model.data_preprocessor.test_cfg or {}
        inputs = self._prepared(pixels, padding.get('size'), padding.get('size_divisor'), 'pad_val')
        size = inputs.shape[2:]
        logits = self.model.encode_decode(inputs, [dict(img_shape=size, pad_shape=size)])
        logits = self._calibrated(logits[..., : pixels.shape[2], : pixels.shape[3]])
        if logits.shape[1] == 1:
            return torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits

    def _classified(self, pixels: Tensor) -> Tensor:
        divisor = getattr(self.model.data_preprocessor, 'pad_size_divisor', None)
        logits = self.model(self._prepared(pixels, None, divisor, 'pad_value'), mode='tensor')
        if self.several_labels:  # each label is a binary prediction, as a pixel's is
            return self._calibrated(logits[:, None, None]).reshape(logits.shape)
        return self._calibrated(logits)

    def _prepared(
        self, pixels: Tensor, size: tuple[int, int] | None, divisor: int | None, value: str
    ) -> Tensor:
        """Return pixels after the data preprocessor's steps, padded below and on the right."""
        prepare = self.model.data_preprocessor
        reverses = any(getattr(prepare, name, False) for name in REVERSES)
        inputs = pixels.flip(1) if reverses and pixels.shape[1] == 3 else pixels
        if getattr(prepare, '_enable_normalize', False):
            inputs = (inputs - prepare.mean) / prepare.std
        height, width = inputs.shape[2:]
        if size is not None:
            right, below = max(size[1] - width, 0), max(size[0] - height, 0)
        elif divisor is not None and divisor > 1:
            right, below = -width % divisor, -height % divisor
        else:
            return inputs
        return F.pad(inputs, (0, right, 0, below), value=getattr(prepare, value))

    def _calibrated(self, logits: Tensor) -> Tensor:
        calibration = getattr(self.model, 'calibration', None)
        return logits if calibration is None else calibration(logits)


def _check_exportable(model: nn.Module) -> None:
    if returns_scores(model):
        raise UserError(
            f'{type(model).__name__} classifies masks, and its scores are not the logits of a '
            'softmax, so it cannot be exported'
        )
    if (getattr(model, 'test_cfg', None) or {}).get('mode') == 'slide':
        raise UserError(
            "test_cfg.mode='slide' averages over windows, which an ONNX file does not: export the "
            'network of one window by --cfg-options model.test_cfg.mode=whole --size HEIGHT WIDTH '
            'and average where you run it'
        )
