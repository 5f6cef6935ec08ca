"""Drawn predictions made of arrays."""

import torch

from mmcalib.calibration.draw import Draw
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.independent_groups import Groups
from mmcalib.predictions.image_predictions import ImagePredictions


def draw_of_arrays(logits, labels, images):
    """Return a draw of all predictions: logits (M, K), labels (M,) and image indices (M,)."""
    logits = torch.as_tensor(logits)
    labels = torch.as_tensor(labels)
    images = torch.as_tensor(images)
    rows = ImagePredictions(
        predicted=logits.argmax(dim=1), logits=logits, labels=labels, images=images
    )
    return Draw(
        rows=rows,
        population=len(rows),
        num_images=int(images.max()) + 1,
        images=images.unique(),
    )


def held_out(draw, group_of_image=None, *, run_of_group=None, seed=0):
    """Return a draw in groups, by default one of each image; runs of these may be the folds."""
    of_image = torch.arange(draw.num_images) if group_of_image is None else group_of_image
    groups = Groups(of_image, int(of_image.max()) + 1, run_of_group=run_of_group)
    return HeldOut(draw, groups, seed)
