"""What tools/calibrate.py makes of the configs that mmseg and mmpretrain ship, without any data."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch

from mmcalib.calibrate.calibrate_checkpoint import CalibrationOptions

ROOT = Path(__file__).resolve().parents[2]
TOOLBOXES = ('mmseg', 'mmpretrain')
APART, CROSS_FITTED = 'validation data apart', 'cross-fitted'
NO_DATA = 'there is no folder'  # how a run ends that has all but its data


def config_folder(toolbox: str) -> Path:
    """Return the folder of the configs that an installed toolbox ships."""
    return Path(find_spec(toolbox).origin).parent / '.mim/configs'


def stock_configs(toolbox: str) -> list[str]:
    """Return the paths below :func:`config_folder` of all configs that are more than a base."""
    folder = config_folder(toolbox)
    paths = (path.relative_to(folder) for path in folder.rglob('*.py'))
    return sorted(str(path) for path in paths if '_base_' not in path.parts)


@contextmanager
def calibration_tool() -> Iterator[dict]:
    """Give the names of tools/calibrate.py, in an empty folder that holds one checkpoint."""
    tool = runpy.run_path(str(ROOT / 'tools/calibrate.py'))
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        torch.save({'state_dict': {}}, 'weights.pth')
        try:
            yield tool
        finally:
            os.chdir(before)


def division(tool: dict, toolbox: str, config: str) -> tuple[str, str | None]:
    """Return how a calibration would divide the images of a config, or why it refuses it.

    All is done that the tool does before it needs data and weights.

    Args:
        tool: Of :func:`calibration_tool`.
        toolbox: Of the config.
        config: Of :func:`stock_configs`.

    Returns:
        :data:`APART` or :data:`CROSS_FITTED` and None; else ``''`` and the reason.
    """
    path = config_folder(toolbox) / config
    arguments, sys.argv = sys.argv, ['calibrate.py', str(path), 'weights.pth', '--out', 'new.pth']
    options = CalibrationOptions()
    try:
        with redirect_stdout(StringIO()):
            tool['prepare'](tool['parse_args']()[1], options)
    except (ImportError, OSError, ValueError) as error:
        if NO_DATA not in str(error):
            return '', _reason(str(error), path)
    finally:
        sys.argv = arguments
    return (CROSS_FITTED if options.cross_fit else APART), None


def _reason(message: str, path: Path) -> str:
    """Return the first sentence of an error, without the path of the config."""
    short = message.replace(f'{path}: ', '').replace(f'{path} ', '').splitlines()[0]
    return short.split('. ')[0]
