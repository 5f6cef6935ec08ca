"""The steps of a toolbox from pixels to probabilities, as one module to export."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import has_several_labels, returns_scores
from mmcalib.posthoc.logits import with_other_class

# The toolboxes' versions call the option of a data preprocessor that reverses the channels so.
REVERSING_OPTIONS = ('to_rgb', 'channel_conversion', '_channel_conversion')


class PredictingNetwork(nn.Module):
    """A network from pixels to the probabilities of a model's predictions, or to their logits.

    It includes an attached calibration and the steps of the data preprocessor, which reverses the
    channels, normalises and pads. A binary head of one channel has two classes here.

    Args:
        model: Model of mmpretrain or mmseg, in evaluation.
        logits: Whether to return logits; their softmax is the probabilities, or their sigmoid where
            an image has several labels.

    Shape:
        ``(N, C, H, W)`` float32, as the test pipeline returns images → ``(N, K)`` of a classifier,
        ``(N, K, H, W)`` of a segmentor.

    Raises:
        UserError: If the model predicts in windows, or classifies masks.
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
        logits = self._segment(pixels) if self.segments else self._classify(pixels)
        return logits if self.logits else self.probabilities(logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits ``(N, K, …)``."""
        return logits.sigmoid() if self.several_labels else logits.softmax(dim=1)

    def _segment(self, pixels: Tensor) -> Tensor:
        """Return the logits of a segmentor, of the size of the unpadded pixels."""
        preprocessor = self.model.data_preprocessor
        padding = preprocessor.test_cfg or {}
        inputs = self._preprocess(
            pixels,
            size=padding.get('size'),
            divisor=padding.get('size_divisor'),
            pad_value=preprocessor.pad_val,
        )
        size = inputs.shape[2:]
        logits = self.model.encode_decode(inputs, [dict(img_shape=size, pad_shape=size)])
        height, width = pixels.shape[2:]
        return with_other_class(self._calibrate(logits[..., :height, :width]))

    def _classify(self, pixels: Tensor) -> Tensor:
        """Return the logits of a classifier."""
        preprocessor = self.model.data_preprocessor
        inputs = self._preprocess(
            pixels,
            size=None,
            divisor=getattr(preprocessor, 'pad_size_divisor', None),
            pad_value=getattr(preprocessor, 'pad_value', 0),
        )
        logits = self.model(inputs, mode='tensor')
        if self.several_labels:  # Each label is a binary prediction, as a pixel's is.
            return self._calibrate(logits[:, None, None]).reshape(logits.shape)
        return self._calibrate(logits)

    def _preprocess(
        self,
        pixels: Tensor,
        *,
        size: tuple[int, int] | None,
        divisor: int | None,
        pad_value: float,
    ) -> Tensor:
        """Return pixels after the data preprocessor's steps, padded below and on the right."""
        preprocessor = self.model.data_preprocessor
        reverses = any(getattr(preprocessor, name, False) for name in REVERSING_OPTIONS)
        inputs = pixels.flip(1) if reverses and pixels.shape[1] == 3 else pixels
        if getattr(preprocessor, '_enable_normalize', False):
            inputs = (inputs - preprocessor.mean) / preprocessor.std
        height, width = inputs.shape[2:]
        if size is not None:
            below = max(size[0] - height, 0)
            right = max(size[1] - width, 0)
        elif divisor is not None and divisor > 1:
            below = -height % divisor
            right = -width % divisor
        else:
            return inputs
        return F.pad(inputs, (0, right, 0, below), value=pad_value)

    def _calibrate(self, logits: Tensor) -> Tensor:
        """Return logits after the attached calibration, if there is one."""
        calibration = getattr(self.model, 'calibration', None)
        return logits if calibration is None else calibration(logits)


def _check_exportable(model: nn.Module) -> None:
    """Raise a UserError for a model whose predictions a file would not reproduce."""
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
