"""Export a model and its calibration to ONNX, and compare its probabilities with PyTorch's.

The file holds normalization, the network and the calibration, folded or attached. The tool writes
it only if onnxruntime predicts the same probabilities as PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib.cli.options import REQUIRED, Options, option, positional
from mmcalib.cli.shared import CONFIG_HELP, config_option


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Options of the command ``export``, which its help describes."""

    examples = (
        'CONFIG CHECKPOINT --out model.onnx',
        'CONFIG CHECKPOINT --out model.onnx --size 512 512',
    )

    config: str = positional(CONFIG_HELP)
    checkpoint: str = positional(
        'checkpoint, calibrated or not; or a work dir for the best checkpoint in it'
    )
    out: str = option('file to write', REQUIRED, metavar='FILE.onnx')
    overwrite: bool = option('replace --out if it exists', False)
    logits: bool = option('return logits instead of probabilities', False)
    size: Sequence[int] | None = option(
        'trace the network on random pixels of this size (default: on the first test image)',
        nargs=2,
        metavar=('HEIGHT', 'WIDTH'),
    )
    fixed: bool = option(
        'accept one image of this size only (default: any batch and size that work)', False
    )
    opset: int | None = option(
        'version of the ONNX operators (default: 18, or 17 by PyTorch before 2.6)', metavar='N'
    )
    tolerance: float = option(
        'largest difference of a probability from PyTorch', 1e-4, metavar='DIFFERENCE'
    )
    cfg_options: Mapping[str, Any] | None = config_option(group='config')
