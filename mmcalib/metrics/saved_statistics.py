"""Statistics that an evaluation leaves for later tools: small, and readable without the model."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.bins.bin_tables import equal_mass_bins
from mmcalib.metrics.bins.conventions import MMCALIB

TABLES = ('narrow_bins', 'image_bins', 'image_narrow_bins', 'class_bins', 'distance_bins')
TABLES += ('image_class', 'image_class_bins', 'objects')
# As large as the data set, so not for text.
BY_IMAGE = ('image_bins', 'image_narrow_bins', 'image_class', 'image_class_bins', 'objects')


@dataclass
class CalibrationStatistics:
    """The metrics of one evaluation, and the tables for its diagrams.

    Attributes:
        metrics: What was printed, by name without the prefix.
        protocol: Name of the segmentation protocol.
        convention: Name of the convention of binning.
        num_bins: Of the metrics.
        narrow_bins: ``(3, C)`` float64 table of narrow bins, ascending in confidence, of all images
            together: count, correct, sum of confidences. At most some 6,000, none empty.
        image_bins: ``(n, 3, B)`` float64, the bins of equal width of each image, in the order of
            the dataset; None if read from ``.json``, which does not hold them.
        image_narrow_bins: ``(n, 3, C)`` int32, how many predictions of each image are in each of
            :mod:`~mmcalib.metrics.bins.image_bins`: those with a label, the correct ones, and those
            without a label; None if read from ``.json``, or if the protocol leaves out pixels by
            their labels.
        class_bins: ``(3, K, B)`` float64, those of the predictions of each class; None if they were
            not counted.
        classes: Names of the K classes.
        distance_bins: ``(3, D, B)`` float64, those of the pixels in each range of distance from a
            boundary, as :mod:`~mmcalib.samples.boundary_distance` has them; None likewise.
        image_class: ``(R, 2)`` int64, which image and class each row of `image_class_bins` is of.
        image_class_bins: ``(R, 3, C)`` int32, see
            :class:`~mmcalib.metrics.bins.class_image_bins.ClassImageBins`; both None if classes
            were not counted, or as `image_narrow_bins` is.
        objects: ``(O, 6)`` float64, the objects of segmented images: place of the image, class,
            size, mean confidence, expected IoU, and IoU; None if they were not kept.
    """

    metrics: dict[str, float]
    protocol: str
    convention: str
    num_bins: int
    narrow_bins: Tensor
    image_bins: Tensor | None = None
    image_narrow_bins: Tensor | None = None
    class_bins: Tensor | None = None
    classes: list[str] | None = None
    distance_bins: Tensor | None = None
    image_class: Tensor | None = None
    image_class_bins: Tensor | None = None
    objects: Tensor | None = None

    @property
    def num_predictions(self) -> int:
        """The number of predictions in the narrow bins."""
        return int(self.narrow_bins[0].sum())

    def complete(self, other: CalibrationStatistics) -> None:
        """Take over what another metric of the same options has measured of the same data."""
        self.metrics |= other.metrics
        own = ('class_bins', 'classes', 'distance_bins', 'objects')
        for name in (*own, 'image_class', 'image_class_bins'):
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))

    def bins(self, num_bins: int, *, equal_mass: bool = False) -> Tensor:
        """Return a ``(3, B)`` table for a diagram of any number of bins.

        Of more than 6,146 predictions, a confidence within 0.4 % of an edge's distance from 1 may
        count on the wrong side of it, so an ECE of these bins may differ a little from `metrics`.
        """
        if equal_mass:
            return equal_mass_bins(self.narrow_bins, num_bins)
        index = MMCALIB.bin_of(self.narrow_bins[2] / self.narrow_bins[0], num_bins)
        return torch.zeros(3, num_bins, dtype=torch.float64).index_add_(1, index, self.narrow_bins)

    def save(self, path: str | Path) -> None:
        """Write to a ``.json`` or ``.npz`` file, making its folder.

        Raises:
            ValueError: For any other suffix.
        """
        path = Path(path)
        suffix = check_suffix(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        tables = {name: values.pop(name) for name in TABLES if name in values}
        if suffix == '.json':
            lists = {name: t.tolist() for name, t in tables.items() if name not in BY_IMAGE}
            path.write_text(json.dumps(values | lists))
            return
        arrays = {name: table.numpy() for name, table in tables.items()}
        np.savez_compressed(path, info=json.dumps(values), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> CalibrationStatistics:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: For another kind of file.
        """
        path = Path(path)
        try:
            if check_suffix(path) == '.json':
                values = json.loads(path.read_text())
                for name in values.keys() & set(TABLES):
                    values[name] = torch.tensor(values[name], dtype=torch.float64)
                values['narrow_bins'] = values['narrow_bins'].view(3, -1)
                return cls(**values)
            with np.load(path) as file:
                values = json.loads(str(file['info']))
                tables = {key: torch.from_numpy(file[key]) for key in file.files if key != 'info'}
            return cls(**values, **tables)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f'{path} does not hold calibration statistics: {error!r}') from error


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a file for statistics.

    Raises:
        ValueError: If it is neither ``.json`` nor ``.npz``.
    """
    suffix = Path(path).suffix
    if suffix not in ('.json', '.npz'):
        raise ValueError(f'statistics go to a .json or .npz file, got {str(path)!r}')
    return suffix
