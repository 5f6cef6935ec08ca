"""Confidences in a few bins by image, against loops over predictions."""

import pickle

import pytest
import torch
from samples import classified, flatten, segmented

from mmcalib.metrics import CalibrationState, CalibrationStatistics
from mmcalib.metrics.bins.image_bins import (
    NUM_NARROW_BINS,
    count_in_narrow_bins,
    narrow_bin_thresholds,
    shares_above,
)
from mmcalib.samples.evaluated import read_prediction


def state_of(samples, **options):
    state = CalibrationState(['ECE'], keep_bins=True, **options)
    for index, sample in samples:
        prediction = read_prediction(sample, ignore_index=255, name='sample', wanted=state.wanted)
        state.update(prediction, index=index)
    return state


def test_a_cell_holds_what_is_above_its_threshold_and_not_above_the_next():
    thresholds = narrow_bin_thresholds()
    assert len(thresholds) == NUM_NARROW_BINS == 98 and thresholds.diff().gt(0).all()
    generator = torch.Generator().manual_seed(0)
    conf = torch.cat([
        torch.rand(500, generator=generator),
        1 - 10 ** (-8 * torch.rand(500, generator=generator)),
        torch.tensor([0.0, 0.5, 0.75, 0.875, 1 - 2**-24, 1.0]),
    ])  # fmt: skip
    for value in conf:
        (bin,) = count_in_narrow_bins(value[None], torch.tensor([True]))[0].nonzero().squeeze(1)
        expected = sum(value.item() > threshold for threshold in thresholds.tolist()) - 1
        assert bin == expected, value


def test_the_shares_are_those_of_each_images_own_predictions():
    samples = segmented(5)
    state = state_of(enumerate(samples))
    kept, wrong = shares_above(state.image_narrow_bins())
    for number, sample in enumerate(samples):
        conf, correct = flatten([sample])
        for column, threshold in enumerate(narrow_bin_thresholds().tolist()):
            above = [right for c, right in zip(conf, correct, strict=True) if c > threshold]
            assert kept[number, column].item() == pytest.approx(len(above) / len(conf))
            assert wrong[number, column].item() == pytest.approx(above.count(False) / len(conf))


def test_any_split_merges_to_the_order_of_the_data_set():
    samples = list(enumerate(segmented(7)))
    expected = state_of(samples).image_narrow_bins()
    merged = state_of(samples[1::2]).merge(pickle.loads(pickle.dumps(state_of(samples[::2]))))
    assert merged.image_narrow_bins().equal(expected)
    assert expected.dtype == torch.int32 and expected[:, 0].sum() == merged.num_predictions


def test_an_image_without_labels_is_left_out_of_the_shares():
    empty, full = segmented(2)
    empty['gt_sem_seg']['data'][:] = 255
    bins = state_of(enumerate([empty, full])).image_narrow_bins()
    assert bins.shape == (2, 3, NUM_NARROW_BINS) and not bins[0, :2].any()
    assert bins[0, 2].sum() == empty['gt_sem_seg']['data'].numel()
    assert len(shares_above(bins)[0]) == 1


@pytest.mark.parametrize('binary', [False, True])
def test_pixels_without_a_label_are_counted_by_their_confidence(binary):
    (sample,) = segmented(3)[2:]  # whose first two rows have none
    logits = sample['seg_logits']['data']
    conf = logits.softmax(0).amax(0)
    if binary:
        prob = logits[:1].sigmoid()
        sample['seg_logits']['data'] = prob
        sample['pred_sem_seg']['data'] = (prob > 0.5).long()
        sample['gt_sem_seg']['data'][:, 2:] %= 2
        conf = torch.maximum(prob, 1 - prob)[0]
    unlabelled = state_of([(0, sample)]).image_narrow_bins()[0, 2]
    above = unlabelled.flip(0).cumsum(0).flip(0).tolist()
    for threshold, count in zip(narrow_bin_thresholds().tolist(), above, strict=True):
        assert count == sum(value > threshold for value in conf[:2].flatten().tolist())


@pytest.mark.parametrize('protocol', ['pooled', 'image', 'foreground', 'paper', 'boundary'])
def test_they_are_saved_where_no_pixel_is_left_out(tmp_path, protocol):
    state = state_of(enumerate(segmented(3)), protocol=protocol)
    statistics = state.statistics(state.compute())
    statistics.save(tmp_path / 'calibration.npz')
    loaded = CalibrationStatistics.load(tmp_path / 'calibration.npz')
    if protocol in ('pooled', 'image'):
        assert loaded.image_narrow_bins.equal(state.image_narrow_bins())
    else:
        assert loaded.image_narrow_bins is None
    statistics.save(tmp_path / 'calibration.json')
    assert CalibrationStatistics.load(tmp_path / 'calibration.json').image_narrow_bins is None


def test_of_a_classifier_every_image_is_one_prediction():
    bins = state_of(enumerate(classified(9))).image_narrow_bins()
    assert bins[:, 0].sum(dim=1).tolist() == [1] * 9
    state = state_of([], convention='torchmetrics')
    assert state.image_narrow_bins().shape == (0, 3, NUM_NARROW_BINS)
