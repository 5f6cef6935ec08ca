"""Segmented images as kept in a file, for drawing their confidence maps."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mmcalib.metrics.errors import calibration_error
from mmcalib.work_dir import whole_file

# What numpy raises for files that are cut off, overwritten, or of another kind.
BROKEN_FILE = (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
ARRAYS = ('image', 'label', 'predicted', 'conf', 'valid', 'table')


@dataclass(frozen=True)
class ConfidenceView:
    """One segmented image, at the size at which it is drawn.

    Attributes:
        index: Its place in the dataset.
        name: What captions call it, such as its file name.
        image: ``(H, W, 3)`` uint8, RGB.
        label: ``(H, W)`` int16 true classes.
        predicted: ``(H, W)`` int16.
        conf: ``(H, W)`` float16 probability of the predicted class.
        valid: ``(H, W)`` booleans, False where the label is to be ignored.
        table: ``(3, B)`` bins of equal width of the whole image: count, correct, sum of
            confidences.
    """

    index: int
    name: str
    image: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    conf: np.ndarray
    valid: np.ndarray
    table: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error of the image, in percent; NaN without a valid pixel."""
        return calibration_error(torch.from_numpy(self.table)).item()

    def renamed(self, name: str) -> ConfidenceView:
        """Return the same view under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class ConfidenceMaps:
    """The images that one run keeps for confidence maps.

    Attributes:
        views: The chosen ones, in the order of the dataset.
        worst: Those with the largest calibration error, the worst first.
        classes: K names.
        palette: K RGB colours, 0 to 255; None for a palette of matplotlib's.
    """

    views: list[ConfidenceView]
    worst: list[ConfidenceView]
    classes: list[str]
    palette: list[list[int]] | None = None

    def save(self, path: str | Path) -> None:
        """Write everything to one compressed ``.npz`` file, in place of what it held."""
        arrays = {
            f'{kind}_{number}_{key}': value
            for kind in ('views', 'worst')
            for number, view in enumerate(getattr(self, kind))
            for key, value in vars(view).items()
            if key in ARRAYS
        }
        info = {
            kind: [{'index': view.index, 'name': view.name} for view in getattr(self, kind)]
            for kind in ('views', 'worst')
        }
        info |= {'classes': self.classes, 'palette': self.palette}
        with whole_file(path) as file:
            np.savez_compressed(file, info=json.dumps(info), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> ConfidenceMaps:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: For another kind of file, or one that was cut off.
        """
        try:
            with np.load(path) as file:
                info = json.loads(str(file['info']))
                for kind in ('views', 'worst'):
                    info[kind] = [
                        ConfidenceView(
                            **view, **{key: file[f'{kind}_{number}_{key}'] for key in ARRAYS}
                        )
                        for number, view in enumerate(info[kind])
                    ]
                return cls(**info)
        except BROKEN_FILE as error:
            raise ValueError(f'{path} does not hold confidence maps: {error!r}') from error
