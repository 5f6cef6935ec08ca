"""Whether the images of a fit are held out: neither those of the training nor of the test."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.config import Config

from mmcalib.openmmlab.same_data import build_if_there, sample_ids

# Above this share of training images, what is fitted holds for images that were learned.
MOST_LEARNED = 0.1


def shared_with(cfg: Config, split: str, datasets: Mapping[str, object]) -> dict[str, int]:
    """Return how many images of the fit the training and the test data have too.

    Args:
        cfg: Of the run.
        split: Of the fit.
        datasets: Those that are built, by their split; the others are built from the config.

    Returns:
        ``images``, how many different ones the fit has; ``train`` and ``test``, how many of them
        these data have; ``test_images``, how many different ones the test has. A split that cannot
        be read, or that the config lacks, is left out.
    """
    keys = {sample.key for sample in sample_ids(datasets[split])}
    counts = {'images': len(keys)}
    for other in ('train', 'test'):
        if other == split:
            continue
        dataset = datasets.get(other)
        if dataset is None:
            dataset = build_if_there(cfg, other)
        if dataset is None:
            continue
        others = {sample.key for sample in sample_ids(dataset)}
        counts[other] = len(keys & others)
        if other == 'test':
            counts['test_images'] = len(others)
    return counts
