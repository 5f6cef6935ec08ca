"""Where in a pipeline images are corrupted, found by what its transforms do to one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from mmengine.registry import DATASETS
from PIL import Image

from mmcalib.datasets.download_sources import dataset_configs
from mmcalib.runs.data_checks import unchanged_randomness
from mmcalib.transforms.corrupt import check_image

# Of no picture, and of no size that pipelines ask for: what resizes or crops changes it.
PROBE_SHAPE = (1543, 1021, 3)


@dataclass(frozen=True)
class CorruptionPlace:
    """Between which transforms of a data set its images are corrupted.

    Attributes:
        index: Of the transform before which :class:`~mmcalib.transforms.Corrupt` stands: behind
            those that load and resize, before padding, normalising and packing.
        loader: Index of the transform that loads the image, None where the data set gives it.
        shape: ``(H, W)`` of the first image there.
        loaded_shape: And as it was loaded.
        flipped: Whether transforms before it have exchanged red and blue.
        value_range: Which values are black and white, None of 8 bits.
    """

    index: int
    loader: int | None
    shape: tuple[int, int]
    loaded_shape: tuple[int, int]
    flipped: bool = False
    value_range: tuple[float, float] | None = None

    @property
    def channel_order(self) -> str:
        """That of the images: files are loaded as BGR, and mmpretrain's arrays are RGB."""
        return 'rgb' if (self.loader is None) != self.flipped else 'bgr'


@dataclass
class _Work:
    """What transforms did to an image: by their numbers, until one is too late for a corruption.

    Attributes:
        images: The image before each of them, from the first that has one.
        loader: The one that loads it, if one does.
        changes: Those that resize, crop or otherwise change it.
        flips: Those that exchange red and blue.
        end: The one that packs, normalises or pads it; how many there are, if none does.
    """

    images: dict[int, object]
    loader: int | None
    changes: list[int]
    flips: list[int]
    end: int


def corruption_places(dataset: Mapping, scope: str | None) -> list[CorruptionPlace]:
    """Return the place in the pipeline of each data set in a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: The config's ``default_scope``.

    Raises:
        ValueError: If there is no list of transforms, or the images have neither 8 bits nor a
            ``value_range`` in the ``metainfo`` of their data set.
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
            value_range = (getattr(built, 'metainfo', None) or {}).get('value_range')
            places.append(find_place(transforms, built.get_data_info(0), value_range))
    return places


def find_place(
    transforms: Sequence, sample: Mapping, value_range: tuple[float, float] | None = None
) -> CorruptionPlace:
    """Watch transforms at work on a sample, and return where its image is to be corrupted.

    So they are on an image of another size, since one that has its size already is not resized.

    Raises:
        ValueError: If the image has neither 8 bits nor a range when it is loaded, or is a PIL image
            from where it is resized to where it is packed.
    """
    seen = _watch(transforms, deepcopy(sample))
    image = seen.images.get(seen.end)
    check_image(_array(image), value_range)
    both = [seen, *_probed(transforms, sample)]
    index = max([number + 1 for work in both for number in work.changes] + [min(seen.images)])
    index = min(index, *(work.end for work in both))
    while not isinstance(seen.images[index], np.ndarray):  # as torchvision's transforms have it
        index += 1
        if index > seen.end:
            raise ValueError(
                'images are PIL images from where they are resized to where they are packed, and '
                "Corrupt takes arrays: put dict(type='PILToNumpy') behind what resizes"
            )
    flips = [number for number in both[-1].flips if number < index]
    shapes = [_array(seen.images[place]).shape[:2] for place in (index, min(seen.images))]
    flipped = len(flips) % 2 == 1
    value_range = None if _array(image).dtype == np.uint8 else value_range
    return CorruptionPlace(index, seen.loader, *shapes, flipped, value_range)


def _probed(transforms: Sequence, sample: Mapping) -> list[_Work]:
    """Return what transforms do to an image of another size, nothing if they cannot take it."""
    probe = np.random.default_rng(0).integers(0, 256, PROBE_SHAPE, dtype=np.uint8)
    try:
        return [_watch(transforms, deepcopy(sample), probe)]
    except Exception:  # a transform can be anything, and has done its work on the sample
        return []


def _watch(transforms: Sequence, sample: Mapping, probe: np.ndarray | None = None) -> _Work:
    """Watch transforms at work on a sample, or on a probe in place of the image it came with."""
    work = _Work({}, None, [], [], len(transforms))
    if _array(_image(sample)) is not None:
        sample = _with_probe(sample, probe)
        work.images[0] = _image(sample)
    for number, transform in enumerate(transforms):
        before = _array(work.images.get(number))
        sample = transform(sample)
        image = _image(sample)
        after = _array(image)
        if before is None:
            if after is not None:
                work.loader, sample = number, _with_probe(sample, probe)
                work.images[number + 1] = _image(sample)
            continue
        if after is None or _normalises(before, after) or _pads(before, after):
            work.end = number
            break
        if not np.array_equal(after, before):
            work.changes.append(number)
            if np.array_equal(after, before[..., ::-1]):
                work.flips.append(number)
        work.images[number + 1] = image
    return work


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
        if place.value_range is not None:
            transform['value_range'] = place.value_range
        pipeline = list(node.get('pipeline') or ())
        new['pipeline'] = [*pipeline[: place.index], transform, *pipeline[place.index :]]
    return changed


def _leaves(dataset: Mapping) -> Iterator[dict]:
    """Yield the configs of those data sets that read samples themselves."""
    for _, node in dataset_configs('', dataset):
        if 'dataset' not in node and 'datasets' not in node:
            yield node


def _image(sample: object) -> object:
    """Return a copy of the image of a sample, since transforms may work in place."""
    image = sample.get('img') if isinstance(sample, Mapping) else None
    return image.copy() if isinstance(image, (np.ndarray, Image.Image)) else None


def _array(image: object) -> np.ndarray | None:
    return None if image is None else np.asarray(image)


def _with_probe(sample: dict, probe: np.ndarray | None) -> dict:
    """Return a sample with another image, of which it also has the size."""
    if probe is None:
        return sample
    size = probe.shape[:2]
    return {**sample, 'img': probe.copy(), 'img_shape': size, 'ori_shape': size}


def _normalises(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether values are of another kind; floats may be of other values alone."""
    rescaled = before.dtype.kind == 'f' and before.shape == after.shape
    return before.dtype != after.dtype or (rescaled and not np.array_equal(before, after))


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
