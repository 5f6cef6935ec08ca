"""The predictions that a split of a Runner gives: logits, labels and what is drawn of them."""

import pytest
import torch
from tiny_models import classifier, draw_predictions, fcn_head, images, scenes, segmentor

from mmcalib.openmmlab.runner_source import RunnerSource, predictor
from mmcalib.posthoc import TemperatureScaler


def make_classifier():
    return classifier(dict(type='LinearClsHead', num_classes=5, in_channels=8))


def test_draw_classifier_has_logits_of_its_head_and_labels_in_order():
    model = make_classifier()
    loader = images()
    draw = draw_predictions(model, loader)
    with torch.no_grad():
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    assert torch.equal(draw.logits, logits)
    assert draw.labels.tolist() == [int(sample.gt_label) for sample in loader.dataset]
    assert draw.rows.images.tolist() == list(range(12))
    assert draw.num_images == 12


def test_draw_segmentor_has_logits_of_valid_pixels():
    model = segmentor(fcn_head())
    loader = scenes()
    draw = draw_predictions(model, loader)
    valid_logits = []
    with torch.no_grad():
        for batch in loader:
            for sample in model.val_step(batch):
                valid = sample.gt_sem_seg.data[0] != 255
                valid_logits.append(sample.seg_logits.data[:, valid].T)
    expected = torch.cat(valid_logits)
    torch.testing.assert_close(draw.logits, expected)
    assert draw.population == len(expected)


@pytest.mark.parametrize('batch_size', [1, 4])
def test_draw_other_batch_size_same_predictions(batch_size):
    model = segmentor(fcn_head())
    expected = draw_predictions(model, scenes(), num_samples=50)
    actual = draw_predictions(model, scenes(batch_size=batch_size), num_samples=50)
    assert len(expected.labels) == 50 < expected.population
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(actual.rows.images, expected.rows.images)


def test_draw_other_seed_other_predictions():
    model = segmentor(fcn_head())
    first = draw_predictions(model, scenes(), num_samples=50, seed=0)
    second = draw_predictions(model, scenes(), num_samples=50, seed=1)
    assert not torch.equal(first.logits, second.logits)


def test_predictor_binary_segmentor_logits_are_from_before_the_sigmoid():
    model = segmentor(fcn_head(2, out_channels=1, threshold=0.3))
    batch = scenes(num_classes=2)[0]
    with torch.no_grad():
        # Logits are so large that their sigmoid is exactly 1.
        model.decode_head.conv_seg.weight *= 40
    with predictor(model) as predict:
        predicted = predict(batch)
    with predictor(model, from_scores=True) as predict:
        predicted_from_scores = predict(batch)
    sample = predicted.samples[0]
    probs = sample.seg_logits.data
    logits = predicted.logits[0]
    rounded_logits = predicted_from_scores.logits[0]
    assert (probs == 1).any()
    assert logits.abs().max() > 40
    assert rounded_logits.max() < 18
    assert logits.shape == probs.shape == (1, 13, 17)
    torch.testing.assert_close(logits.sigmoid(), probs)
    torch.testing.assert_close(rounded_logits.sigmoid(), probs)
    assert torch.equal(sample.pred_sem_seg.data.bool(), probs > 0.3)


def test_classifier_of_far_logits_is_folded():
    """Scores below 1e-38 are 0, and do not tell their logits."""
    model = make_classifier()
    with torch.no_grad():
        model.head.fc.weight *= 2000
    loader = images()
    source = RunnerSource(model, loader)
    draw = draw_predictions(model, loader)
    assert (draw.logits.amax(dim=1) - draw.logits.amin(dim=1)).max() > 200
    placement = source.expected_placement(model, TemperatureScaler())
    assert placement.layers == ['head.fc']


def test_draw_without_valid_pixel_raises():
    loader = scenes(n=2)
    for sample in loader.dataset:
        sample.gt_sem_seg.data[:] = 255
    with pytest.raises(ValueError, match='no valid prediction in 2 images'):
        draw_predictions(segmentor(fcn_head()), loader)
