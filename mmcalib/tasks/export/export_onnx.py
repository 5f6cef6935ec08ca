"""A trained model as an ONNX file, which onnxruntime must run as PyTorch does."""

from __future__ import annotations

import inspect
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib import __version__
from mmcalib.checks import UserError, check_integer, check_number
from mmcalib.hooks.require_same_classes_hook import classes_of
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc.fold_into_layer import largest_difference
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.runs.checks import NOT_BUILT
from mmcalib.runs.constructor_arguments import quiet_imports
from mmcalib.runs.training_record import CALIBRATION, describe_calibration
from mmcalib.samples.writing import probabilities_in
from mmcalib.tasks.export.predicting_network import PredictingNetwork
from mmcalib.tasks.predict.load_model import load_predicting_model
from mmcalib.work_dir import check_writable, whole_file

INPUT = 'pixels'
OPSET = 17
TOLERANCE = 1e-4
AXES = ('batch', 'channels', 'height', 'width')
# What may vary in a file: the first of these that onnxruntime runs as PyTorch does.
FREE = (('batch', 'height', 'width'), ('batch',), ())
# By so many pixels the other size is larger, multiples of what networks usually divide sizes by.
LARGER = (32, 64)


@dataclass(frozen=True)
class ExportedModel:
    """What :func:`export_onnx` has written.

    Attributes:
        shape: Of the input: numbers, and the names of the axes that may have any size.
        output: ``'probabilities'`` or ``'logits'``.
        difference: The largest between a probability of onnxruntime and of PyTorch.
        fixed: Why axes have a fixed size that was not asked for; else empty.
        metadata: What the file tells of itself, by name; the values are JSON.
    """

    shape: tuple[int | str, ...]
    output: str
    difference: float
    fixed: str
    metadata: Mapping[str, str]


def export_onnx(
    cfg: Config,
    checkpoint: str,
    out: str | Path,
    *,
    logits: bool = False,
    size: Sequence[int] | None = None,
    fixed: bool = False,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
) -> ExportedModel:
    """Export a model with its data preprocessor and its calibration, folded or attached.

    onnxruntime runs the file on one image, on two at once and on one of another size. Where two
    images or another size fail, the file takes one image, or one size. It is written only if all
    probabilities are those that the toolbox itself predicts.

    Args:
        cfg: As :func:`~mmcalib.runs.config.load_config` read it, of either toolbox.
        checkpoint: The file with the weights.
        out: The file to write.
        logits: Whether it returns logits in place of probabilities.
        size: Height and width of an example of random pixels; None to take the first test image.
        fixed: Whether the file takes one image of the example's size, and nothing else.
        opset: ONNX's version of the operators.
        tolerance: The largest difference that a probability may have.

    Raises:
        UserError: If a package is missing, there is no example, the model or one of its operators
            cannot be exported, or onnxruntime's probabilities differ by more.
        ValueError: If the model cannot be built, or an option is out of range.
    """
    _check_packages()
    check_integer('--opset', opset)
    check_number('--tolerance', tolerance)
    with quiet_imports(), MODELS.switch_scope_and_registry(cfg.get('default_scope')):
        try:
            model, (meta,) = load_predicting_model(cfg, [checkpoint])
        except UserError:
            raise
        except NOT_BUILT as error:
            raise ValueError(f'the model cannot be built: {error}') from error
        pixels = _random_image(model, size) if size else _first_image(cfg)
    network = PredictingNetwork(model, logits=logits).eval()
    problems = []
    for free in [()] if fixed else FREE:
        try:
            content = _traced(network, pixels, free, opset)
            difference = _largest_difference(content, network, _trials(pixels, free))
        except UserError:
            raise
        except Exception as error:  # of whatever operator PyTorch or onnxruntime lacks
            problems.append(f'{type(error).__name__}: {str(error).strip().splitlines()[0]}')
            continue
        if difference <= tolerance:
            break
        problems.append(
            f"a probability differs from PyTorch's by {difference:.1g}"
            if isfinite(difference)
            else 'a probability is not finite'
        )
    else:
        raise UserError(
            f'the model cannot be exported: {problems[-1]}. Nothing was written. A larger '
            '--tolerance or another --opset may help'
        )
    metadata = _metadata(network, meta, checkpoint)
    _write(content, metadata, out)
    sizes = zip(AXES, pixels.shape, strict=True)
    return ExportedModel(
        shape=tuple(axis if axis in free else extent for axis, extent in sizes),
        output=network.output,
        difference=difference,
        fixed=problems[0] if problems else '',
        metadata=metadata,
    )


def check_onnx_file(out: str, *, overwrite: bool) -> None:
    """Raise an error if the file to write is there already, or cannot be made.

    Raises:
        ValueError: If its name does not end in ``.onnx``, or it is there, unless `overwrite`.
        OSError: If nothing can be written there.
    """
    if Path(out).suffix != '.onnx':
        raise ValueError(f'--out {out}: name a file that ends in .onnx')
    if Path(out).exists() and not overwrite:
        raise ValueError(f'--out {out} exists: name another file, or add --overwrite')
    check_writable(out)


def report_in_words(exported: ExportedModel, out: str) -> str:
    """Return what a tool prints of a finished export."""
    shape = ', '.join(map(str, exported.shape))
    calibration = json.loads(exported.metadata['calibration'])
    calibrated = ', '.join(calibration['methods']) if calibration else 'none in the checkpoint'
    lines = [
        f'Input {INPUT!r} ({shape}), output {exported.output!r}; calibration: {calibrated}.',
        f'Largest difference of a probability from PyTorch: {exported.difference:.1e}.',
    ]
    if exported.fixed:
        both = 'height' if 'batch' in exported.shape else 'batch, height'
        lines.append(f'Fixed: {both} and width, since others failed. {exported.fixed}')
    return '\n'.join([*lines, f'Written: {out}'])


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'the export requires {error.name}: pip install onnx onnxruntime, or mmcalib[export]'
        ) from error


def _random_image(model: nn.Module, size: Sequence[int]) -> Tensor:
    """Return pixels ``(1, C, H, W)`` whose normalised values are a normal distribution's."""
    first = next((weight for weight in model.parameters() if weight.ndim == 4), None)
    if first is None:
        raise UserError(
            f'{type(model).__name__} has no convolution, and only image models can be exported'
        )
    prepare, generator = model.data_preprocessor, torch.Generator().manual_seed(0)
    pixels = torch.randn(1, first.shape[1], *size, generator=generator)
    if getattr(prepare, '_enable_normalize', False):
        pixels = pixels * prepare.std + prepare.mean
    return pixels


def _first_image(cfg: Config) -> Tensor:
    """Return the pixels ``(1, C, H, W)`` of the first test image after the test pipeline."""
    hint = "give the size of the network's input by --size HEIGHT WIDTH"
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    if loader is None:
        raise UserError(f'the config has no test data for an example: {hint}')
    try:
        with DATASETS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
            pixels = registry.build(loader.dataset)[0]['inputs']
    except NOT_BUILT as error:
        raise UserError(f'there is no test image for an example ({error}): {hint}') from error
    if not torch.is_tensor(pixels) or pixels.ndim != 3:
        raise UserError(
            'the test pipeline returns no image (C, H, W), and only image models can be exported'
        )
    return pixels[None].float()


def _trials(pixels: Tensor, free: Sequence[str]) -> list[Tensor]:
    """Return the batches that a file must run whose axes vary as said."""
    batches = [pixels]
    if 'batch' in free:
        batches.append(torch.cat([pixels, pixels.flip(3)]))
    if 'height' in free:
        size = [extent + more for extent, more in zip(pixels.shape[2:], LARGER, strict=True)]
        batches.append(F.interpolate(pixels, size, mode='bilinear'))
    return batches


def _traced(network: PredictingNetwork, pixels: Tensor, free: Sequence[str], opset: int) -> bytes:
    # Of the two exporters of newer PyTorch, the older: the other takes minutes over free sizes.
    has_two = 'dynamo' in inspect.signature(torch.onnx.export).parameters
    older: dict[str, Any] = {'dynamo': False} if has_two else {}
    axes = {number: axis for number, axis in enumerate(AXES) if axis in free}
    of_output = {n: axis for n, axis in axes.items() if n == 0 or network.segments}
    content = io.BytesIO()
    with _no_stdout(), warnings.catch_warnings(), full_precision():
        warnings.simplefilter('ignore')  # of values that the trace takes as constants
        torch.onnx.export(
            network,
            (pixels,),
            content,
            input_names=[INPUT],
            output_names=[network.output],
            dynamic_axes={INPUT: axes, network.output: of_output},
            opset_version=opset,
            **older,
        )
    return content.getvalue()


@contextmanager
def _no_stdout() -> Iterator[None]:
    """Drop what is written to standard output by PyTorch's C++: the graph, where it ends early."""
    kept = os.dup(1)
    with open(os.devnull, 'wb') as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _largest_difference(
    content: bytes, network: PredictingNetwork, batches: Sequence[Tensor]
) -> float:
    """Return the largest difference of a probability between onnxruntime and the toolbox."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised as well
    session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    outputs = [torch.from_numpy(session.run(None, {INPUT: x.numpy()})[0]) for x in batches]
    found = map(network.probabilities, outputs) if network.logits else outputs
    return largest_difference((_predicted(network, pixels) for pixels in batches), found)


def _predicted(network: PredictingNetwork, pixels: Tensor) -> Tensor:
    """Return the probabilities that the toolbox predicts, by its own data preprocessor and head."""
    sample = _segmentation_sample if network.segments else _classification_sample
    data = {'inputs': list(pixels), 'data_samples': [sample(pixels) for _ in pixels]}
    with torch.no_grad(), full_precision():
        samples = network.model.test_step(data)
    probs = torch.stack([probabilities_in(sample.to_dict()) for sample in samples])
    if network.segments and probs.shape[1] == 1:
        return torch.cat([1 - probs, probs], dim=1)
    return probs


def _classification_sample(pixels: Tensor) -> Any:
    from mmpretrain.structures import DataSample

    return DataSample()


def _segmentation_sample(pixels: Tensor) -> Any:
    from mmseg.structures import SegDataSample

    size = tuple(pixels.shape[2:])
    return SegDataSample(metainfo=dict(ori_shape=size, img_shape=size, pad_shape=size))


def _metadata(network: PredictingNetwork, meta: Mapping, checkpoint: str) -> dict[str, str]:
    """Return what a file tells of itself, by name; the values are JSON."""
    prepare, head = network.model.data_preprocessor, head_of(network.model)
    found = {
        'output': network.output,
        'input': 'float32 pixels as the test pipeline returns them, before the data_preprocessor',
        'classes': classes_of(meta.get('dataset_meta')),
        'calibration': describe_calibration(meta),
        'checkpoint': Path(checkpoint).name,
        'mmcalib': __version__,
    }
    if getattr(prepare, '_enable_normalize', False):
        found |= {'mean': prepare.mean.flatten().tolist(), 'std': prepare.std.flatten().tolist()}
    if (meta.get(CALIBRATION) or {}).get('method') == 'temperature':
        found['temperature'] = meta[CALIBRATION]['parameters']['temperature']
    if getattr(head, 'out_channels', None) == 1:
        found['threshold'] = head.threshold
    return {key: json.dumps(value, ensure_ascii=False) for key, value in found.items()}


def _write(content: bytes, metadata: Mapping[str, str], out: str | Path) -> None:
    import onnx

    model = onnx.load_from_string(content)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    with whole_file(out) as path:
        onnx.save(model, path)
