"""The command ``export``: from its options to an ONNX file that predicts as PyTorch does."""

from __future__ import annotations

from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from torch import Tensor

from mmcalib.cli.export import ExportOptions
from mmcalib.commands.export.network import PredictingNetwork
from mmcalib.commands.export.onnx_file import (
    AXES,
    FREE_AXES,
    INPUT,
    OnnxFile,
    default_opset,
    find_onnx_file,
    random_image,
    save_onnx_file,
)
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.members import find_checkpoint
from mmcalib.options import check_number
from mmcalib.runs.checkpoint import read_checkpoint, short_calibration
from mmcalib.runs.checks import NOT_BUILT, building
from mmcalib.runs.config import load_config
from mmcalib.runs.runner import build_model


def export_model(options: ExportOptions) -> None:
    """Write a model with its data preprocessor and its calibration as an ONNX file.

    onnxruntime runs the file on one image, on two at once and on one of another size. Where two
    images or another size fail, the file takes one image, or one size. It is written only if all
    probabilities are those that the toolbox itself predicts.

    Raises:
        OSError: If nothing can be written there, or a file is missing.
        UserError: If `out` exists or is no ``.onnx`` file, a package is missing, there is no
            example, the model or one of its operators cannot be exported, or onnxruntime's
            probabilities differ by more than the tolerance.
    """
    check_options(options)
    checkpoint = read_checkpoint(find_checkpoint(options.checkpoint))
    cfg = load_config(options.config, options.cfg_options)
    in_scope = MODELS.switch_scope_and_registry(cfg.get('default_scope'))
    with in_scope:
        model = build_model(cfg, [checkpoint])
        with building('the first image of the test data: '):
            pixels = random_image(model, options.size) if options.size else first_test_image(cfg)
    network = PredictingNetwork(model, logits=options.logits).eval()
    onnx_file = find_onnx_file(
        network,
        pixels,
        free_axes=[()] if options.fixed else FREE_AXES,
        opset=options.opset or default_opset(),
        tolerance=options.tolerance,
    )
    save_onnx_file(onnx_file, options.out, network=network, checkpoint=checkpoint)
    calibration = short_calibration(checkpoint.calibration)
    methods = calibration['methods'] if calibration else ['none in the checkpoint']
    print(summary(onnx_file, network.output, pixels, methods))
    print(f'Written: {options.out}')


def check_options(options: ExportOptions) -> None:
    """Raise a UserError before the minutes of an export whose file could not be written."""
    if Path(options.out).suffix != '.onnx':
        raise UserError(f'--out {options.out} does not end in .onnx: name a file.onnx')
    if Path(options.out).exists() and not options.overwrite:
        raise UserError(f'--out {options.out} exists: name another file, or add --overwrite')
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'there is no {error.name}: pip install onnx onnxruntime onnxscript, which are the '
            'extra [export] of mmcalib'
        ) from error
    check_number('--tolerance', options.tolerance)
    check_writable(options.out)


def first_test_image(cfg: Config) -> Tensor:
    """Return the pixels ``(1, C, H, W)`` of the first test image after the test pipeline."""
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
    try:
        pixels = DATASETS.build(loader.get('dataset'))[0]['inputs']
        return pixels.reshape(1, *pixels.shape[-3:]).float()
    except NOT_BUILT as error:
        raise UserError(
            f'there is no test image for an example ({error}): give the size of the input of the '
            'network by --size HEIGHT WIDTH'
        ) from error


def summary(onnx_file: OnnxFile, output: str, pixels: Tensor, methods: list[str]) -> str:
    """Return what a user should know of a file: its input and output, and how exact it is."""
    sizes = [
        axis if axis in onnx_file.free else str(extent)
        for axis, extent in zip(AXES, pixels.shape, strict=True)
    ]
    exporter = onnx_file.exporter
    problem_of_others = None
    for failed_exporter, free, problem in onnx_file.failures:
        if free == onnx_file.free:
            exporter = f'{exporter}, since {failed_exporter} failed: {problem}'
        else:
            problem_of_others = problem
    lines = [
        f'Input {INPUT!r} ({", ".join(sizes)}), output {output!r}; '
        f'calibration: {", ".join(methods)}.',
        f'Exporter: {exporter}.',
        f'Largest difference of a probability from PyTorch: {onnx_file.difference:.1e}.',
    ]
    if problem_of_others is not None:
        fixed = [axis for axis in FREE_AXES[0] if axis not in onnx_file.free]
        lines.append(f'Fixed: {" and ".join(fixed)}, since others failed. {problem_of_others}')
    return '\n'.join(lines)
