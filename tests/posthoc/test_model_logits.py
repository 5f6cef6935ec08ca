"""Logits read from a model are those behind its predictions; a draw of them, and its memory."""

import pytest
import torch
from tiny_models import classifier, draw_predictions, fcn_head, images, scenes, segmentor

from mmcalib.posthoc import draw
from mmcalib.posthoc.model_logits import predictor

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)
BINARY = fcn_head(2, out_channels=1, threshold=0.3)


def test_a_classifiers_logits():
    model, loader = classifier(LINEAR), images()
    drawn = draw_predictions(model, loader)
    assert drawn.population == 12 == drawn.num_images
    assert drawn.images.tolist() == list(range(12))
    with torch.no_grad():
        expected = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    torch.testing.assert_close(drawn.logits, expected.log_softmax(dim=1))
    assert drawn.labels.tolist() == [int(s.gt_label) for s in loader.dataset]


def test_a_segmentors_logits():
    model, loader = segmentor(fcn_head()), scenes()
    drawn = draw_predictions(model, loader)
    with torch.no_grad():
        evaluated = [s for batch in loader for s in model.val_step(batch)]
    valid = [s.gt_sem_seg.data[0] != 255 for s in evaluated]
    expected = torch.cat([s.seg_logits.data[:, v].T for s, v in zip(evaluated, valid, strict=True)])
    torch.testing.assert_close(drawn.logits, expected)
    assert drawn.population == sum(int(v.sum()) for v in valid)


def test_a_binary_segmentors_logits_are_from_before_the_sigmoid():
    model, loader = segmentor(BINARY), scenes(num_classes=2)
    with torch.no_grad():  # so large that the sigmoid is exactly 1
        model.decode_head.conv_seg.weight *= 40
    with predictor(model) as predict, predictor(model, of_samples=True) as predict_samples:
        (first, _), (rounded, _) = predict(loader[0]), predict_samples(loader[0])
    probs = first.sample['seg_logits']['data']
    assert (probs == 1).any() and first.logits.abs().max() > 40 > 18 > rounded.logits.max()
    assert first.logits.shape == probs.shape == (1, 13, 17)
    for each in (first, rounded):
        torch.testing.assert_close(each.logits.sigmoid(), probs)
    assert torch.equal(first.sample['pred_sem_seg']['data'].bool(), probs > 0.3)


def test_the_model_is_left_as_it_was():
    binary = segmentor(BINARY), scenes(num_classes=2)
    for model, loader in (binary, (classifier(LINEAR), images())):
        model.train()
        draw_predictions(model, loader)
        assert model.training and 'postprocess_result' not in vars(model)
        assert not any(module._forward_hooks for module in model.modules())


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='no valid prediction in 2 images'):
        loader = scenes(n=2)
        for sample in loader.dataset:
            sample.gt_sem_seg.data[:] = 255
        draw_predictions(segmentor(fcn_head()), loader)
    with pytest.raises(ValueError, match=r'sample 0 .*NaN'):
        model = classifier(LINEAR)
        model.head.fc.weight.data[0] = float('nan')
        draw_predictions(model, images())
    with pytest.raises(ValueError, match=r'0\.jpg has .* labels outside \[0, 4\)'):
        draw_predictions(segmentor(fcn_head()), scenes(num_classes=9))


@pytest.mark.parametrize('batch_size', [1, 4])
def test_the_draw(batch_size):
    model = segmentor(fcn_head())
    one = draw_predictions(model, scenes(), num_samples=50)
    assert len(one.labels) == 50 < one.population
    other = draw_predictions(model, scenes(batch_size=batch_size), num_samples=50)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.images, other.images)
    assert one.images.tolist() == sorted(one.images.tolist())
    again = draw_predictions(model, scenes(), num_samples=50, seed=1)
    assert not torch.equal(one.logits, again.logits)


def test_each_image_has_a_draw_of_its_own():
    rows = torch.arange(100.0)[:, None].expand(-1, 2)
    parts = [draw.LogitRows(rows, rows[:, 0].long(), torch.full((100,), n)) for n in (0, 1)]
    found = draw.draw(parts, num_samples=60)
    first, second = (found.logits[found.images == n, 0].tolist() for n in (0, 1))
    assert first != second and 15 < len(first) < 45


def test_every_prediction_is_as_likely():
    counts = torch.zeros(60)
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        sizes = (10, 20, 30)
        priorities = [torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes]
        rows = torch.arange(60).split(sizes)
        first = draw.lowest(list(zip(priorities[:2], rows[:2], strict=True)), 12)
        priority, labels = draw.lowest([first, (priorities[2], rows[2])], 12)
        assert labels.tolist() == sorted(labels.tolist()) and len(labels) == 12
        assert priority.max() <= torch.cat(priorities).sort().values[11]
        counts[labels] += 1
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), atol=0.04, rtol=0)
