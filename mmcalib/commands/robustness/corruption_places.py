"""The place in the pipeline of a data set where its images are corrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from mmcalib.errors import UserError
from mmcalib.openmmlab.transforms.corrupt import check_image
from mmcalib.runs.config_tree import type_name, walk
from mmcalib.tensors import unchanged_randomness

# Images are corrupted before these transforms, and before those that pack.
LATER_TRANSFORMS = ('Pad', 'Normalize', 'ToTensor', 'TestTimeAug')


@dataclass(frozen=True)
class Place:
    """Place where the images of a data set are corrupted: behind resizing, before padding, packing.

    Attributes:
        index: Index of the transform that the corruption comes before.
        loader: Index of the transform that loads the image; None if the data set itself has it.
        channel_order: ``'bgr'`` of loaded files, ``'rgb'`` of mmpretrain's arrays, as they are at
            this place.
        shape: ``(H, W)`` of the first image at this place.
        value_range: Values of black and white; None for 8 bits.
    """

    index: int
    loader: int | None
    channel_order: str
    shape: tuple[int, int]
    value_range: tuple[float, float] | None


def find_places(dataset: Mapping, scope: str | None, before: str | None = None) -> list[Place]:
    """Return the place in each data set of a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: Scope of the registry, the config's ``default_scope``.
        before: Name of the transform before which images are corrupted; None to find it.

    Raises:
        UserError: If there is no such transform.
        ValueError: For images that have neither 8 bits nor a ``value_range`` in the metainfo.
    """
    with unchanged_randomness():
        return [find_place(config, scope, before) for config in reading_datasets(dataset)]


def find_place(config: Mapping, scope: str | None, before: str | None) -> Place:
    """Return the place in a data set that reads samples itself, see :func:`find_places`."""
    pipeline = list(config.get('pipeline') or ())
    names = [type_name(transform['type']).split('/')[-1] for transform in pipeline]
    if before and before not in names:
        raise UserError(f'--corrupt-before {before}: name one of {", ".join(names)}')
    index = 0
    while index < len(names) and not is_later(names[index], before):
        index += 1
    loader = None
    reverses_channels = False
    for position, name in enumerate(names[:index]):
        if name.startswith('LoadImage') and loader is None:
            loader = position
        transform = pipeline[position]
        if transform.get('to_rgb') or transform.get('to_bgr'):
            reverses_channels = not reverses_channels
    # Loaded files are BGR and arrays RGB, unless a transform reverses their channels.
    is_bgr = (loader is not None) != reverses_channels
    built = build_dataset({**config, 'pipeline': pipeline[:index]}, scope)
    image = built[0].get('img')
    value_range = (getattr(built, 'metainfo', None) or {}).get('value_range')
    check_image(image, value_range)
    return Place(
        index=index,
        loader=loader,
        channel_order='bgr' if is_bgr else 'rgb',
        shape=image.shape[:2],
        value_range=None if image.dtype == 'uint8' else value_range,
    )


def is_later(name: str, before: str | None) -> bool:
    """Return whether a transform comes after the corruption."""
    if before:
        return name == before
    return name in LATER_TRANSFORMS or name.startswith('Pack')


def with_corruption(
    dataset: Mapping, places: Sequence[Place], corruption: str, severity: int, seed: int = 0
) -> dict:
    """Return the config of a data set with ``Corrupt`` at its places."""
    changed = deepcopy(dataset)
    # Two parts may be the same object, so each pipeline is made of the unchanged one.
    originals = reading_datasets(dataset)
    for original, part, place in zip(originals, reading_datasets(changed), places, strict=True):
        transform = dict(
            type='Corrupt',
            corruption=corruption,
            severity=severity,
            seed=seed,
            channel_order=place.channel_order,
        )
        if place.value_range is not None:
            transform['value_range'] = place.value_range
        pipeline = list(original.get('pipeline') or ())
        part['pipeline'] = [*pipeline[: place.index], transform, *pipeline[place.index :]]
    return changed


def reading_datasets(dataset: Mapping) -> Iterator[dict]:
    """Yield the configs of the data sets in a config that read samples themselves."""
    for path, part in walk(dataset):
        is_wrapper = 'type' not in part or 'dataset' in part or 'datasets' in part
        if not is_wrapper and 'pipeline' not in path.split('.'):
            yield part


def build_dataset(config: Mapping, scope: str | None) -> Dataset:
    """Return the data set of a config, with its samples listed."""
    with DATASETS.switch_scope_and_registry(scope) as registry:
        dataset = registry.build(deepcopy(config))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset
