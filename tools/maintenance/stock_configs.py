"""What tools/calibrate.py makes of the configs that mmseg and mmpretrain ship, without any data."""

from __future__ import annotations

import json
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

from mmcalib.tasks.calibrate.calibrate import prepare

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / 'docs/results/stock_configs.json'
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
    try:
        args = tool['parse_args']()[1]
        with redirect_stdout(StringIO()):
            prepare(args)
    except (ImportError, OSError, ValueError) as error:
        if NO_DATA not in str(error):
            return '', _reason(str(error), path)
    finally:
        sys.argv = arguments
    return (CROSS_FITTED if args.cross_fit else APART), None


def recorded(title: str, toolbox: str) -> list[dict]:
    """Return the rows of one of the tables that write_stock_configs.py wrote."""
    tables = json.loads(RECORD.read_text('utf-8'))
    (rows,) = (t['rows'] for t in tables if (t['title'], t['toolbox']) == (title, toolbox))
    return rows


def divisions(toolbox: str) -> dict[tuple[str, str | None], list[str]]:
    """Return the stock configs of a toolbox by their :func:`division`."""
    found: dict[tuple[str, str | None], list[str]] = {}
    with calibration_tool() as tool:
        for config in stock_configs(toolbox):
            found.setdefault(division(tool, toolbox, config), []).append(config)
    return found


def _reason(message: str, path: Path) -> str:
    """Return the first sentence of an error, without the path of the config."""
    short = message.replace(f'{path}: ', '').replace(f'{path} ', '').splitlines()[0]
    return short.split('. ')[0].split(', the current sys.path')[0]
