"""Text samples in mmpretrain's format."""

from __future__ import annotations

from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class PackText:
    """Pack a text sample for mmpretrain's classifiers.

    Takes ``text`` and ``gt_label``; gives ``inputs``, which is still the text (the model holds the
    vocabulary), and ``data_samples``, an mmpretrain ``DataSample`` with the label, ``sample_idx``
    and ``path``.
    """

    def __call__(self, sample: dict) -> dict:
        from mmpretrain.structures import DataSample

        meta = {key: sample[key] for key in ('sample_idx', 'path') if key in sample}
        data_sample = DataSample(metainfo=meta)
        if 'gt_label' in sample:
            data_sample.set_gt_label(sample['gt_label'])
        return {'inputs': sample['text'], 'data_samples': data_sample}
