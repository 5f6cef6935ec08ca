"""A network as an ONNX file: exported, compared with PyTorch, and saved."""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib.calibration.prove import largest_difference
from mmcalib.commands.export.network import PredictingNetwork
from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.openmmlab.heads import find_head
from mmcalib.openmmlab.sample_writing import probabilities_in
from mmcalib.predictions.full_precision import full_precision
from mmcalib.runs.checkpoint import Checkpoint, short_calibration
from mmcalib.version import __version__

INPUT = 'pixels'
AXES = ('batch', 'channels', 'height', 'width')
# Axes whose extent may vary in a file: the first of these that onnxruntime runs as PyTorch does.
FREE_AXES = (('batch', 'height', 'width'), ('batch',), ())
# Pixels by which another height and width are larger: multiples of the divisors of most networks.
LARGER_BY = (32, 64)
# PyTorch's two exporters. TorchScript is deprecated, and writes what torch.export cannot.
TORCH_EXPORT = 'torch.export'
TORCHSCRIPT = 'TorchScript'
# The lowest opset that has all operators which torch.export is translated to.
LOWEST_OPSET = 18


@dataclass(frozen=True)
class OnnxFile:
    """An exported network whose probabilities are PyTorch's.

    Attributes:
        content: Bytes of the ONNX model.
        free: Axes whose extent may vary.
        exporter: PyTorch's exporter that wrote it.
        difference: Largest difference of a probability from PyTorch.
        failures: Exporter, free axes and problem of each attempt before.
    """

    content: bytes
    free: tuple[str, ...]
    exporter: str
    difference: float
    failures: list[tuple[str, tuple[str, ...], str]]


def find_onnx_file(
    network: PredictingNetwork,
    pixels: Tensor,
    *,
    free_axes: Sequence[tuple[str, ...]],
    opset: int,
    tolerance: float,
) -> OnnxFile:
    """Return the first file whose probabilities differ by at most `tolerance` from PyTorch's.

    Each set of axes is tried by torch.export, and then by TorchScript.

    Args:
        network: Network to export.
        pixels: Example, ``(1, C, H, W)``.
        free_axes: Sets of the axes that vary, in the order in which they are tried.
        opset: Version of the ONNX operators.
        tolerance: Largest difference of a probability.

    Raises:
        UserError: If there is none.
    """
    failures: list[tuple[str, tuple[str, ...], str]] = []
    for free in free_axes:
        for exporter, export in EXPORTERS.items():
            try:
                content = export(network, pixels, free, opset)
                difference = difference_from_torch(content, network, pixels, free)
            except Exception as error:  # PyTorch or onnxruntime may lack any operator.
                failures.append((exporter, free, error_text(error)))
                continue
            if difference <= tolerance:
                return OnnxFile(content, free, exporter, difference, failures)
            if isfinite(difference):
                problem = f"a probability differs from PyTorch's by {difference:.1g}"
            else:
                problem = 'a probability is not finite'
            failures.append((exporter, free, problem))
    _, _, problem = failures[-1]
    raise UserError(
        f'the model cannot be exported: {problem}. Nothing was written. A larger '
        '--tolerance or another --opset may help'
    )


def error_text(error: BaseException) -> str:
    """Return the first line of an error's text; of one of PyTorch's exporter, that of its cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, UserError):
        return str(error)
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    # PyTorch asks for a report of what its exporter lacks, and then quotes the graph.
    reason, _, _ = lines[0].partition(' Please feel free')
    return f'{type(error).__name__}: {reason}'


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


def export_program(
    network: PredictingNetwork, pixels: Tensor, free: Sequence[str], opset: int
) -> bytes:
    """Return the ONNX model of a network whose `free` axes vary, by way of torch.export.

    Raises:
        UserError: If this PyTorch, the packages or the opset are too old for it.
    """
    check_torch_export(opset)
    dimension = torch.export.Dim.DYNAMIC
    # An example of one image would make one a constant.
    example = torch.cat([pixels, pixels.flip(3)]) if 'batch' in free else pixels
    with quiet(), full_precision(), torch.no_grad():
        program = torch.export.export(
            network,
            (example,),
            dynamic_shapes=(dict.fromkeys(axes_by_index(free), dimension),),
            strict=False,
        )
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            input_names=[INPUT],
            output_names=[network.output],
            dynamic_shapes=(axes_by_index(free),),
            opset_version=opset,
            verbose=False,
        )
    model = exported.model_proto
    actual_opset = model.opset_import[0].version
    if actual_opset != opset:
        raise UserError(f'the file has opset {actual_opset}')
    clear_notes(model.graph)
    return model.SerializeToString()


def has_torch_export() -> bool:
    """Return whether this PyTorch is 2.6 or later, whose torch.export finds free sizes."""
    return hasattr(torch.export.Dim, 'DYNAMIC')


def default_opset() -> int:
    """Return the opset of a file that is not told one.

    TorchScript of an older PyTorch writes operators of 17 even into a file of 18.
    """
    return LOWEST_OPSET if has_torch_export() else LOWEST_OPSET - 1


def check_torch_export(opset: int) -> None:
    """Raise a UserError where torch.export cannot be tried."""
    if not has_torch_export():
        raise UserError(f'PyTorch {torch.__version__} is older than 2.6')
    if find_spec('onnxscript') is None:
        raise UserError('there is no onnxscript: pip install onnxscript')
    if opset < LOWEST_OPSET:
        raise UserError(f'--opset {opset} is below {LOWEST_OPSET}')


def clear_notes(graph: Any) -> None:
    """Remove what torch.export notes beside a graph: lines and paths of the code, as many bytes."""
    parts = (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for part in (graph, *parts):
        part.ClearField('metadata_props')
        part.ClearField('doc_string')
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField('g'):  # A branch, or the body of a loop.
                clear_notes(attribute.g)


def export_trace(
    network: PredictingNetwork, pixels: Tensor, free: Sequence[str], opset: int
) -> bytes:
    """Return the ONNX model of a network whose `free` axes vary, by way of TorchScript."""
    input_axes = axes_by_index(free)
    if network.segments:
        output_axes = input_axes
    else:
        output_axes = {index: axis for index, axis in input_axes.items() if axis == 'batch'}
    exporter = {}
    if 'dynamo' in inspect.signature(torch.onnx.export).parameters:
        exporter['dynamo'] = False  # PyTorch before 2.5 has this exporter alone.
    content = io.BytesIO()
    with quiet(), full_precision():
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


# They are tried in this order.
EXPORTERS = {TORCH_EXPORT: export_program, TORCHSCRIPT: export_trace}


def axes_by_index(free: Sequence[str]) -> dict[int, str]:
    """Return the names of free axes by their index in the shape of the pixels."""
    return {index: axis for index, axis in enumerate(AXES) if axis in free}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters, which log errors before they raise them and warn of constants.

    TorchScript's also prints the whole graph, some hundred lines, from C++ to the standard output.
    """
    disabled_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sys.stdout.flush()
    output = os.dup(1)
    with open(os.devnull, 'w') as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)
        logging.disable(disabled_before)


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
