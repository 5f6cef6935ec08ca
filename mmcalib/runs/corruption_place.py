"""Where in a pipeline images are corrupted, found by what its transforms do to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from mmengine.registry import DATASETS

from mmcalib.datasets.download_sources import dataset_configs
from mmcalib.runs.data_preflight import unchanged_randomness
from mmcalib.transforms.corrupt import check_image


@dataclass(frozen=True)
class CorruptionPlace:
    """Between which transforms of a data set its images are corrupted.

    Attributes:
        index: Of the transform before which :class:`~mmcalib.transforms.Corrupt` stands: behind
            those that load and resize, before padding, normalising and packing.
        loader: Index of the transform that loads the image, None where the data set gives it.
        shape: ``(H, W)`` of the first image there.
        loaded_shape: And as it was loaded.
    """

    index: int
    loader: int | None
    shape: tuple[int, int]
    loaded_shape: tuple[int, int]

    @property
    def channel_order(self) -> str:
        """That of the images: files are loaded as BGR, and mmpretrain's arrays are RGB."""
        return 'rgb' if self.loader is None else 'bgr'


def corruption_places(dataset: Mapping, scope: str | None) -> list[CorruptionPlace]:
    """Return the place in the pipeline of each data set in a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: The config's ``default_scope``.

    Raises:
        ValueError: If there is no list of transforms, or the images are no colours of 8 bits.
    """
    places = []
    with DATASETS.switch_scope_and_registry(scope) as registry, unchanged_randomness():
        for node in _leaves(dataset):
            built = registry.build(deepcopy(node))
            transforms = getattr(getattr(built, 'pipeline', None), 'transforms', None)
            if transforms is None:
                raise ValueError(f'{node["type"]} has no list of transforms to put Corrupt into')
            if hasattr(built, 'full_init'):
                built.full_init()
            places.append(find_place(transforms, built.get_data_info(0)))
    return places


def find_place(transforms: Sequence, sample: Mapping) -> CorruptionPlace:
    """Watch transforms at work on a sample, and return where its image is to be corrupted.

    Raises:
        ValueError: If the image is no colours of 8 bits when it is loaded.
    """
    image, index, loader, shapes = _image(sample), 0, None, []
    if image is not None:
        shapes.append(image.shape)
    for number, transform in enumerate(transforms):
        before, sample = image, transform(sample)
        image = _image(sample)
        if before is None:
            if image is None:
                continue
            loader, index = number, number + 1
        elif image is None or image.dtype != before.dtype or _pads(before, image):
            image = before  # packed, normalised or padded: too late
            break
        elif not np.array_equal(image, before):
            index = number + 1
        shapes.append(image.shape)
    check_image(image)
    return CorruptionPlace(index, loader, shapes[-1][:2], shapes[0][:2])


def corrupted(
    dataset: Mapping,
    places: Sequence[CorruptionPlace],
    corruption: str,
    severity: int,
    *,
    seed: int = 0,
) -> dict:
    """Return the config of a data set whose images are corrupted at the given places."""
    changed = deepcopy(dataset)
    # Two parts may be the same object, which must not be corrupted twice.
    for node, new, place in zip(_leaves(dataset), _leaves(changed), places, strict=True):
        transform = dict(
            type='Corrupt',
            corruption=corruption,
            severity=severity,
            seed=seed,
            channel_order=place.channel_order,
        )
        pipeline = list(node.get('pipeline') or ())
        new['pipeline'] = [*pipeline[: place.index], transform, *pipeline[place.index :]]
    return changed


def _leaves(dataset: Mapping) -> Iterator[dict]:
    """Yield the configs of those data sets that read samples themselves."""
    for _, node in dataset_configs('', dataset):
        if 'dataset' not in node and 'datasets' not in node:
            yield node


def _image(sample: object) -> np.ndarray | None:
    image = sample.get('img') if isinstance(sample, Mapping) else None
    return image.copy() if isinstance(image, np.ndarray) else None


def _pads(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether an image lies unchanged in a larger one, in the corner or in the middle."""
    if before.ndim != after.ndim or before.shape == after.shape:
        return False
    if any(new < old for old, new in zip(before.shape, after.shape, strict=True)):
        return False
    height, width = before.shape[:2]
    for top, left in ((0, 0), *[tuple((np.array(after.shape[:2]) - before.shape[:2]) // 2)]):
        if np.array_equal(after[top : top + height, left : left + width], before):
            return True
    return False
