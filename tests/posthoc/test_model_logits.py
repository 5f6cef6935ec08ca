"""That the logits read from a model are the ones behind its predictions."""

import pytest
import torch
from tiny_models import classifier, fcn_head, images, scenes, segmentor

from mmcalib.posthoc.model_logits import draw_predictions, predictor

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
    with predictor(model) as predict:
        (first, _) = predict(loader[0])
    probs = first.sample['seg_logits']['data']
    assert (probs == 1).any() and first.logits.abs().max() > 40
    assert first.logits.shape == probs.shape == (1, 13, 17)
    torch.testing.assert_close(first.logits.sigmoid(), probs)
    predicted = first.sample['pred_sem_seg']['data']
    assert torch.equal(predicted.bool(), probs > 0.3)


def test_those_of_its_samples_have_lost_what_a_sigmoid_rounds():
    model, loader = segmentor(BINARY), scenes(num_classes=2)
    with torch.no_grad():
        model.decode_head.conv_seg.weight *= 40
    with predictor(model) as predict, predictor(model, of_samples=True) as predict_samples:
        exact, rounded = predict(loader[0])[0].logits, predict_samples(loader[0])[0].logits
    assert rounded.max() < 18 < exact.max()
    torch.testing.assert_close(rounded.sigmoid(), exact.sigmoid())


def test_the_model_is_left_as_it_was():
    for model, loader in (
        (segmentor(BINARY), scenes(num_classes=2)),
        (classifier(LINEAR), images()),
    ):
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
