"""The place in a pipeline where images are corrupted, by the names of its transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from mmengine.registry import DATASETS

from mmcalib.datasets.download_sources import dataset_configs
from mmcalib.runs.checks import unchanged_randomness
from mmcalib.runs.config_tree import type_name
from mmcalib.transforms.corrupt import check_image

# Transforms of mmcv, mmpretrain, mmseg, torchvision and this package.
LOADERS = ('LoadImageFromFile', 'LoadImageFromNDArray', 'LoadImageFromNpyFile')
BEFORE = (
    *LOADERS,
    *('Resize', 'ResizeEdge', 'ResizeShortestEdge', 'ResizeToMultiple'),
    *('RandomResize', 'RandomChoiceResize', 'RandomFlip'),
    *('CenterCrop', 'EfficientNetCenterCrop', 'RandomCrop', 'RandomResizedCrop'),
    *('NumpyToPIL', 'PILToNumpy'),
)
# They leave the image as it is.
NEITHER = (
    *('LoadAnnotations', 'LoadDepthAnnotation', 'CleanCaption'),
    *('AtInputSize', 'LabelUntrainedClasses'),
)
BEHIND = ('Pad', 'Normalize', 'ToTensor', 'PackInputs', 'PackSegInputs')


@dataclass(frozen=True)
class CorruptionPlace:
    """The place between the transforms of a data set where its images are corrupted.

    Attributes:
        index: Index of the transform that :class:`~mmcalib.transforms.Corrupt` comes before, behind
            loading and resizing and before padding, normalising and packing.
        loader: Index of the transform that loads the image, None where the data set gives it.
        flipped: Whether transforms before it have exchanged red and blue.
        shape: ``(H, W)`` of the first image there.
        value_range: The values for black and white, None for 8 bits.
    """

    index: int
    loader: int | None
    flipped: bool = False
    shape: tuple[int, int] = (0, 0)
    value_range: tuple[float, float] | None = None

    @property
    def channel_order(self) -> str:
        """The order in the images: files are loaded as BGR, and mmpretrain's arrays are RGB."""
        return 'rgb' if (self.loader is None) != self.flipped else 'bgr'


def corruption_places(
    dataset: Mapping, scope: str | None, before: str | None = None
) -> list[CorruptionPlace]:
    """Return the place in the pipeline of each data set in a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: The config's ``default_scope``.
        before: The transform before which images are corrupted; None to find it.

    Raises:
        ValueError: If a transform is unknown, or the images have neither 8 bits nor a
            ``value_range`` in the ``metainfo`` of their data set.
    """
    places = []
    with DATASETS.switch_scope_and_registry(scope) as registry, unchanged_randomness():
        for node in _leaves(dataset):
            pipeline = list(node.get('pipeline') or ())
            index, loader, flipped = find_place(pipeline, before)
            built = registry.build({**deepcopy(node), 'pipeline': deepcopy(pipeline[:index])})
            image = built[0].get('img')
            value_range = (getattr(built, 'metainfo', None) or {}).get('value_range')
            check_image(image, value_range)
            value_range = None if image.dtype == 'uint8' else value_range
            places.append(CorruptionPlace(index, loader, flipped, image.shape[:2], value_range))
    return places


def find_place(
    pipeline: Sequence[Mapping], before: str | None = None
) -> tuple[int, int | None, bool]:
    """Return the first three attributes of a :class:`CorruptionPlace` in a pipeline.

    Raises:
        ValueError: If a transform is unknown, or the one to stand before is not there.
    """
    names = [type_name(step['type']).split('/')[-1] for step in pipeline]  # torchvision/Resize
    if before and before not in names:
        raise ValueError(f'--corrupt-before {before}: name one of {", ".join(names)}')
    index = names.index(before) if before else 0
    for number, name in enumerate(names if not before else ()):
        if name in BEHIND:
            break
        if name in BEFORE:
            index = number + 1
        elif name not in NEITHER:
            raise ValueError(
                f'{name} may belong before or after the corruption: set --corrupt-before '
                f'to one of {", ".join(names)}'
            )
    loader = next((number for number in range(index) if names[number] in LOADERS), None)
    flips = sum(bool(step.get('to_rgb') or step.get('to_bgr')) for step in pipeline[:index])
    return index, loader, flips % 2 == 1


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
        transform = dict(type='Corrupt', corruption=corruption, severity=severity, seed=seed)
        transform['channel_order'] = place.channel_order
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
