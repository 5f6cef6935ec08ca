"""The steps of a config's test pipeline that an image without labels goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcalib.runs.loss_config import type_name

# What a predicted image has none of, and what brings a prediction to its labels' size.
OF_LABELS = ('Annotation', 'AtInputSize')
LOADER_HINT = (
    'give it one that starts with LoadImageFromFile, in a config with this one as _base_; '
    'docs/howto/images_without_labels.md has one for the digits'
)


def unlabelled_steps(dataset: object) -> list[Mapping]:
    """Return the transforms of a dataset's config that an image without labels goes through.

    Raises:
        ValueError: If the first does not load an image file.
    """
    while isinstance(dataset, Mapping) and 'pipeline' not in dataset:
        inner = dataset.get('dataset') or dataset.get('datasets')
        dataset = inner[0] if isinstance(inner, (list, tuple)) and inner else inner
    pipeline = without_labels(dataset['pipeline']) if isinstance(dataset, Mapping) else []
    first = type_name(pipeline[0]['type']) if pipeline else 'nothing'
    if not first.startswith('Load') or not first.endswith('FromFile'):
        raise ValueError(
            f"the config's test pipeline starts with {first}, so it reads no image files: "
            f'{LOADER_HINT}'
        )
    return pipeline


def without_labels(pipeline: Sequence[Mapping]) -> list[Mapping]:
    """Return the transforms of a test pipeline that have nothing to do with labels.

    Also in the views of a ``TestTimeAug``, where a place with no other alternative goes.
    """
    kept = [
        step for step in pipeline if not any(word in type_name(step['type']) for word in OF_LABELS)
    ]
    return [
        {**step, 'transforms': list(filter(None, map(without_labels, step['transforms'])))}
        if type_name(step['type']) == 'TestTimeAug'
        else step
        for step in kept
    ]
