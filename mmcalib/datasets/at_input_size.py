"""Evaluate a segmentation at the size of the network's input."""

from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module('AtInputSize')
def at_input_size(results: dict) -> dict:
    """Have mmseg predict at the size that the image was resized to, rather than its original one.

    It stands in a test pipeline between ``LoadAnnotations`` followed by ``Resize`` and
    ``PackSegInputs``, so that predictions and resized labels are compared. mmseg brings its logits
    to ``ori_shape``; this replaces it.

    Source: the paper's published code evaluates VOC at a longest side of 480.
    """
    results['ori_shape'] = results['img_shape']
    return results
