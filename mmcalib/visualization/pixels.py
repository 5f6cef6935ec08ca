"""From figures and images to pixels and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmcalib.files import whole_file
from mmcalib.options import check_choice


def save_figure(figure: Figure, path: str | Path, *, dpi: float = 200) -> None:
    """Write a figure to a file.

    Raises:
        ValueError: If the suffix of the file is no format of figures.
    """
    formats = figure.canvas.get_supported_filetypes()
    check_choice(f'the format of {path}', Path(path).suffix.removeprefix('.'), formats)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def to_rgb(figure: Figure) -> np.ndarray:
    """Return a figure as ``(H, W, 3)`` uint8 pixels, as visualizers want them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Return BGR or grey pixels as ``(H, W, 3)`` uint8 RGB, stretched if they are no bytes."""
    if image.dtype != np.uint8:
        low = float(image.min())
        high = float(image.max())
        image = ((image - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] < 3:
        grey = image.reshape(*image.shape[:2], -1)[..., :1]
        return np.repeat(grey, 3, axis=2)
    return np.ascontiguousarray(image[..., 2::-1])
