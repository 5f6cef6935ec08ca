"""Evaluate a segmentation at the size of the network's input."""

from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class AtInputSize:
    """Make mmseg predict at the resized size of an image instead of its original one.

    It stands in a test pipeline between ``LoadAnnotations`` followed by ``Resize`` and
    ``PackSegInputs``, so that predictions and resized labels are compared. mmseg brings its logits
    to ``ori_shape``; this replaces it.

    Source: the paper's published code evaluates VOC at a longest side of 480.
    """

    def __call__(self, results: dict) -> dict:
        results['ori_shape'] = results['img_shape']
        return results
