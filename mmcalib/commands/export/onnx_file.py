"""A network as an ONNX file: traced, compared with PyTorch, and saved."""

from __future__ import annotations

import inspect
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib import __version__
from mmcalib.calibration.place import largest_difference
from mmcalib.commands.export.network import PredictingNetwork
from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.openmmlab.heads import find_head
from mmcalib.openmmlab.sample_writing import probabilities_in
from mmcalib.predictions.full_precision import full_precision
from mmcalib.runs.checkpoint import Checkpoint
from mmcalib.runs.mean import short_calibration

INPUT = 'pixels'
AXES = ('batch', 'channels', 'height', 'width')
# Axes whose extent may vary in a file: the first of these that onnxruntime runs as PyTorch does.
FREE_AXES = (('batch', 'height', 'width'), ('batch',), ())
# Pixels by which another height and width are larger: multiples of the divisors of most networks.
LARGER_BY = (32, 64)


@dataclass(frozen=True)
class OnnxFile:
    """A traced network whose probabilities are PyTorch's.

    Attributes:
        content: Bytes of the ONNX model.
        free: Axes whose extent may vary.
        difference: Largest difference of a probability from PyTorch.
        problems: Why more axes could not be free, a line for each attempt that failed.
    """

    content: bytes
    free: tuple[str, ...]
    difference: float
    problems: list[str]


def find_onnx_file(
    network: PredictingNetwork,
    pixels: Tensor,
    *,
    free_axes: Sequence[tuple[str, ...]],
    opset: int,
    tolerance: float,
) -> OnnxFile:
    """Return the first file whose probabilities differ by at most `tolerance` from PyTorch's.

    Args:
        network: Network to trace.
        pixels: Example, ``(1, C, H, W)``.
        free_axes: Sets of the axes that vary, in the order in which they are tried.
        opset: Version of the ONNX operators.
        tolerance: Largest difference of a probability.

    Raises:
        UserError: If there is none.
    """
    problems = []
    for free in free_axes:
        try:
            content = trace(network, pixels, free, opset)
            difference = difference_from_torch(content, network, pixels, free)
        except Exception as error:  # PyTorch or onnxruntime may lack any operator.
            problems.append(f'{type(error).__name__}: {str(error).strip().splitlines()[0]}')
            continue
        if difference <= tolerance:
            return OnnxFile(content, free, difference, problems)
        if isfinite(difference):
            problems.append(f"a probability differs from PyTorch's by {difference:.1g}")
        else:
            problems.append('a probability is not finite')
    raise UserError(
        f'the model cannot be exported: {problems[-1]}. Nothing was written. A larger '
        '--tolerance or another --opset may help'
    )


def random_image(model: nn.Module, size: Sequence[int]) -> Tensor:
    """Return pixels ``(1, C, H, W)`` whose normalised values are normally distributed."""
    kernels = [parameter for parameter in model.parameters() if parameter.ndim == 4]
    channels = kernels[0].shape[1] if kernels else 3
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, channels, *size, generator=generator, device='cpu')
    preprocessor = model.data_preprocessor
    if getattr(preprocessor, '_enable_normalize', False):
        pixels = pixels * preprocessor.std + preprocessor.mean
    return pixels


def trace(network: PredictingNetwork, pixels: Tensor, free: Sequence[str], opset: int) -> bytes:
    """Return the ONNX model of a network whose `free` axes vary."""
    input_axes = {index: axis for index, axis in enumerate(AXES) if axis in free}
    if network.segments:
        output_axes = input_axes
    else:
        output_axes = {index: axis for index, axis in input_axes.items() if axis == 'batch'}
    # PyTorch's newer exporter takes minutes over free sizes, so the older one is asked for.
    exporter = {}
    if 'dynamo' in inspect.signature(torch.onnx.export).parameters:
        exporter['dynamo'] = False
    content = io.BytesIO()
    with warnings.catch_warnings(), full_precision():
        warnings.simplefilter('ignore')  # A trace warns of values that it takes as constants.
        torch.onnx.export(
            network,
            (pixels,),
            content,
            input_names=[INPUT],
            output_names=[network.output],
            dynamic_axes={INPUT: input_axes, network.output: output_axes},
            opset_version=opset,
            **exporter,
        )
    return content.getvalue()


def difference_from_torch(
    content: bytes, network: PredictingNetwork, pixels: Tensor, free: Sequence[str]
) -> float:
    """Return the largest difference of a probability between onnxruntime and the toolbox."""
    import onnxruntime

    batches = [pixels]
    if 'batch' in free:
        batches.append(torch.cat([pixels, pixels.flip(3)]))
    if 'height' in free:
        height, width = pixels.shape[2:]
        size = (height + LARGER_BY[0], width + LARGER_BY[1])
        batches.append(F.interpolate(pixels, size, mode='bilinear'))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # Errors are raised too, so its log would repeat them.
    session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    expected = []
    actual = []
    for batch in batches:
        expected.append(toolbox_probabilities(network, batch))
        (output,) = session.run(None, {INPUT: batch.numpy()})
        output = torch.from_numpy(output)
        actual.append(network.probabilities(output) if network.logits else output)
    return largest_difference(expected, actual)


def toolbox_probabilities(network: PredictingNetwork, pixels: Tensor) -> Tensor:
    """Return the probabilities that the toolbox predicts, by its own data preprocessor and head."""
    data: dict[str, list] = {'inputs': list(pixels)}
    if network.segments:
        from mmseg.structures import SegDataSample

        size = tuple(pixels.shape[2:])
        meta = dict(ori_shape=size, img_shape=size, pad_shape=size)
        data['data_samples'] = [SegDataSample(metainfo=meta) for _ in pixels]
    with torch.no_grad(), full_precision():
        samples = network.model.test_step(data)
    probs = torch.stack([probabilities_in(sample.to_dict()) for sample in samples])
    if network.segments and probs.shape[1] == 1:
        return torch.cat([1 - probs, probs], dim=1)
    return probs


def save_onnx_file(
    onnx_file: OnnxFile, out: str, *, network: PredictingNetwork, checkpoint: Checkpoint
) -> None:
    """Write an ONNX file with the properties that its users need, whole or not at all."""
    import onnx

    model = onnx.load_from_string(onnx_file.content)
    properties = {
        key: json.dumps(value, ensure_ascii=False)
        for key, value in model_properties(network, checkpoint).items()
    }
    onnx.helper.set_model_props(model, properties)
    with whole_file(out) as path:
        onnx.save(model, path)


def model_properties(network: PredictingNetwork, checkpoint: Checkpoint) -> dict:
    """Return what the metadata of a file tell its users, by name."""
    properties = {
        'output': network.output,
        'input': 'float32 pixels as the test pipeline returns them, before the data_preprocessor',
        'classes': checkpoint.classes,
        'calibration': short_calibration(checkpoint.calibration),
        'checkpoint': Path(checkpoint.path).name,
        'mmcalib': __version__,
    }
    preprocessor = network.model.data_preprocessor
    if getattr(preprocessor, '_enable_normalize', False):
        properties['mean'] = preprocessor.mean.flatten().tolist()
        properties['std'] = preprocessor.std.flatten().tolist()
    calibration = checkpoint.calibration
    if calibration.get('method') == 'temperature':
        properties['temperature'] = calibration['parameters']['temperature']
    head = find_head(network.model)
    if getattr(head, 'out_channels', None) == 1:
        properties['threshold'] = head.threshold
    return properties
