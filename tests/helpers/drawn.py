"""Drawn predictions made of arrays."""

import torch

from mmcalib.calibration.draw import Draw
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
