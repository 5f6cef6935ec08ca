"""A trained model as an ONNX file, which onnxruntime must run as PyTorch does."""

from __future__ import annotations

import inspect
import io
import json
import warnings
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from mmcalib import __version__
from mmcalib.calibration.place import largest_difference
from mmcalib.cli.files import find_checkpoint
from mmcalib.commands.export.network import PredictingNetwork
from mmcalib.errors import UserError
from mmcalib.files import check_writable, whole_file
from mmcalib.openmmlab.heads import head_of
from mmcalib.openmmlab.sample_writing import probabilities_in
from mmcalib.options import check_number
from mmcalib.predictions.full_precision import full_precision
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint, read_checkpoint
from mmcalib.runs.checks import NOT_BUILT, building
from mmcalib.runs.config import load_config
from mmcalib.runs.model import build, describe_calibration

INPUT = 'pixels'
AXES = ('batch', 'channels', 'height', 'width')
# What may vary in a file: the first of these that onnxruntime runs as PyTorch does.
FREE = (('batch', 'height', 'width'), ('batch',), ())
# By so many pixels the other size is larger, multiples of what networks usually divide sizes by.
LARGER = (32, 64)


def export_onnx(
    config: str,
    checkpoint: str | Path,
    out: str,
    *,
    overwrite: bool = False,
    logits: bool = False,
    size: Sequence[int] | None = None,
    fixed: bool = False,
    opset: int = 17,
    tolerance: float = 1e-4,
    cfg_options: dict | None = None,
) -> str:
    """Export a model with its data preprocessor and its calibration; return what to say of it.

    onnxruntime runs the file on one image, on two at once and on one of another size. Where two
    images or another size fail, the file takes one image, or one size. It is written only if all
    probabilities are those that the toolbox itself predicts.

    Args:
        config: Config file, of mmcalib, mmpretrain or mmseg.
        checkpoint: The file with the weights, or a work dir for the best checkpoint in it.
        out: The file to write.
        overwrite: Whether it may be there already.
        logits: Whether it returns logits in place of probabilities.
        size: Height and width of an example of random pixels; None to take the first test image.
        fixed: Whether the file takes one image of the example's size, and nothing else.
        opset: ONNX's version of the operators.
        tolerance: The largest difference that a probability may have.
        cfg_options: Dotted keys and the values that replace those of the config.

    Raises:
        OSError: If nothing can be written there, or a file is missing.
        UserError: If `out` is there or no ``.onnx`` file, a package is missing, there is no
            example, the model or one of its operators cannot be exported, or onnxruntime's
            probabilities differ by more.
    """
    if Path(out).suffix != '.onnx':
        raise UserError(f'--out {out} does not end in .onnx: name a file.onnx')
    if Path(out).exists() and not overwrite:
        raise UserError(f'--out {out} exists: name another file, or add --overwrite')
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(f'there is no {error.name}: pip install onnx onnxruntime') from error
    check_number('--tolerance', tolerance)
    check_writable(out)
    found = read_checkpoint(find_checkpoint(checkpoint))
    cfg = load_config(config, cfg_options)
    of_toolbox = MODELS.switch_scope_and_registry(cfg.get('default_scope'))
    with building('the model cannot be built: '), of_toolbox:
        model = build(cfg, [found])
        pixels = _random_image(model, size) if size else _first_image(cfg)
    network, problems = PredictingNetwork(model, logits=logits).eval(), []
    for free in [()] if fixed else FREE:
        try:
            content = _traced(network, pixels, free, opset)
            difference = _difference(content, network, pixels, free)
        except Exception as error:  # of whatever operator PyTorch or onnxruntime lacks
            problems.append(f'{type(error).__name__}: {str(error).strip().splitlines()[0]}')
            continue
        if difference <= tolerance:
            break
        differs = f"differs from PyTorch's by {difference:.1g}"
        problems.append(f'a probability {differs if isfinite(difference) else "is not finite"}')
    else:
        raise UserError(
            f'the model cannot be exported: {problems[-1]}. Nothing was written. A larger '
            '--tolerance or another --opset may help'
        )
    exported, about = onnx.load_from_string(content), _about(network, found)
    about = {key: json.dumps(value, ensure_ascii=False) for key, value in about.items()}
    onnx.helper.set_model_props(exported, about)
    with whole_file(out) as path:
        onnx.save(exported, path)
    sizes = zip(AXES, pixels.shape, strict=True)
    shape = ', '.join(axis if axis in free else str(extent) for axis, extent in sizes)
    done = describe_calibration(found.meta) or {'methods': ['none in the checkpoint']}
    fixed = ' and '.join(axis for axis in AXES if axis in FREE[0] and axis not in free)
    return '\n'.join([
        f'Input {INPUT!r} ({shape}), output {network.output!r}; '
        f'calibration: {", ".join(done["methods"])}.',
        f'Largest difference of a probability from PyTorch: {difference:.1e}.',
        *(f'Fixed: {fixed}, since others failed. {problem}' for problem in problems[:1]),
        f'Written: {out}',
    ])  # fmt: skip


def _random_image(model: nn.Module, size: Sequence[int]) -> Tensor:
    """Return pixels ``(1, C, H, W)`` whose normalised values are a normal distribution's."""
    channels = next((each.shape[1] for each in model.parameters() if each.ndim == 4), 3)
    prepare, generator = model.data_preprocessor, torch.Generator().manual_seed(0)
    pixels = torch.randn(1, channels, *size, generator=generator, device='cpu')
    if getattr(prepare, '_enable_normalize', False):
        pixels = pixels * prepare.std + prepare.mean
    return pixels


def _first_image(cfg: Config) -> Tensor:
    """Return the pixels ``(1, C, H, W)`` of the first test image after the test pipeline."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
    try:
        pixels = DATASETS.build(loader.get('dataset'))[0]['inputs']
        return pixels.reshape(1, *pixels.shape[-3:]).float()
    except (*NOT_BUILT, AttributeError) as error:
        raise UserError(
            f'there is no test image for an example ({error}): give the size of the input of the '
            'network by --size HEIGHT WIDTH'
        ) from error


def _traced(network: PredictingNetwork, pixels: Tensor, free: Sequence[str], opset: int) -> bytes:
    axes = {number: axis for number, axis in enumerate(AXES) if axis in free}
    options = {
        'input_names': [INPUT],
        'output_names': [network.output],
        'dynamic_axes': {
            INPUT: axes,
            network.output: {n: axis for n, axis in axes.items() if n == 0 or network.segments},
        },
        'opset_version': opset,
    }
    # Of the two exporters of newer PyTorch, the older: the other takes minutes over free sizes.
    if 'dynamo' in inspect.signature(torch.onnx.export).parameters:
        options['dynamo'] = False
    content = io.BytesIO()
    with warnings.catch_warnings(), full_precision():
        warnings.simplefilter('ignore')  # of values that the trace takes as constants
        torch.onnx.export(network, (pixels,), content, **options)
    return content.getvalue()


def _difference(
    content: bytes, network: PredictingNetwork, pixels: Tensor, free: Sequence[str]
) -> float:
    """Return the largest difference of a probability between onnxruntime and the toolbox."""
    import onnxruntime

    batches = [pixels]
    if 'batch' in free:
        batches.append(torch.cat([pixels, pixels.flip(3)]))
    if 'height' in free:
        size = [extent + more for extent, more in zip(pixels.shape[2:], LARGER, strict=True)]
        batches.append(F.interpolate(pixels, size, mode='bilinear'))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised as well
    session = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    outputs = [torch.from_numpy(session.run(None, {INPUT: x.numpy()})[0]) for x in batches]
    found = map(network.probabilities, outputs) if network.logits else outputs
    return largest_difference((_predicted(network, batch) for batch in batches), found)


def _predicted(network: PredictingNetwork, pixels: Tensor) -> Tensor:
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


def _about(network: PredictingNetwork, checkpoint: Checkpoint) -> dict:
    """Return what a file tells of itself, by name."""
    prepare, head = network.model.data_preprocessor, head_of(network.model)
    found = {
        'output': network.output,
        'input': 'float32 pixels as the test pipeline returns them, before the data_preprocessor',
        'classes': checkpoint.classes,
        'calibration': describe_calibration(checkpoint.meta),
        'checkpoint': Path(checkpoint.path).name,
        'mmcalib': __version__,
    }
    if getattr(prepare, '_enable_normalize', False):
        found |= {'mean': prepare.mean.flatten().tolist(), 'std': prepare.std.flatten().tolist()}
    calibration = checkpoint.meta.get(CALIBRATION) or {}
    if calibration.get('method') == 'temperature':
        found['temperature'] = calibration['parameters']['temperature']
    if getattr(head, 'out_channels', None) == 1:
        found['threshold'] = head.threshold
    return found
