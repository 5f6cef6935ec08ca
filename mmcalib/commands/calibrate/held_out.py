"""Images of a fit that are not held out, since the training or the test has them too."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.config import Config

from mmcalib.openmmlab.same_data import build_if_there, sample_ids

# With more training images than this share, a fit is to images that the model has learned.
MOST_LEARNED = 0.1


def shared_with(cfg: Config, split: str, datasets: Mapping[str, object]) -> dict[str, int]:
    """Return the numbers of images of the fit that the training and the test data have too.

    Args:
        cfg: The config of the run.
        split: The split of the fit.
        datasets: Data sets that are built, by their split; others are built from the config.

    Returns:
        ``images``, the number of different images of the fit; ``train`` and ``test``, the number of
        those that these data have; ``test_images``, the number of different images of the test. A
        split that cannot be read, or that the config lacks, is left out.
    """
    keys = sample_keys(datasets[split])
    counts = {'images': len(keys)}
    for other in ('train', 'test'):
        if other == split:
            continue
        dataset = datasets.get(other)
        if dataset is None:
            dataset = build_if_there(cfg, other)
        if dataset is None:
            continue
        other_keys = sample_keys(dataset)
        counts[other] = len(keys & other_keys)
        if other == 'test':
            counts['test_images'] = len(other_keys)
    return counts


def sample_keys(dataset: object) -> set:
    """Return what tells the images of a data set apart, once for each."""
    return {sample.key for sample in sample_ids(dataset)}
