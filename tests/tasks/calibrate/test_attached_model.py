"""Models of both toolboxes with a calibration attached: their predictions, and nothing else."""

import copy

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from tiny_models import classifier, draw_predictions, fcn_head, images, scenes, segmentor
from torch import nn

from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import attached
from mmcalib.posthoc.attached_model import attach
from mmcalib.posthoc.before_and_after import before_and_after
from mmcalib.posthoc.model_logits import predictions, predictor
from mmcalib.tasks.calibrate.apply import layers_for


@MODELS.register_module(force=True)
class MaskClassifier(nn.Module):
    """Scores as Mask2Former's: probabilities of queries' classes times those of their masks."""

    num_classes, out_channels, align_corners = 4, 4, False

    def __init__(self):
        super().__init__()
        self.masks = nn.Conv2d(8, 6, 1)
        self.classes = nn.Parameter(torch.randn(6, 5))

    def predict(self, inputs, *_):
        queries = self.classes.softmax(dim=1)[:, :-1]
        return torch.einsum('qk,nqhw->nkhw', queries, self.masks(inputs[0]).sigmoid())


HEADS = {
    'classifier': dict(type='mmpretrain.LinearClsHead', num_classes=5, in_channels=8),
    'segmentor': dict(
        type='mmseg.SegmenterMaskTransformerHead', in_channels=8, channels=8, num_classes=4,
        num_layers=1, num_heads=1, embed_dims=8, dropout_ratio=0.0,
    ),
    'mask classifier': dict(type='MaskClassifier'),
    'binary segmentor': fcn_head(2, out_channels=1, threshold=0.4),
}  # fmt: skip


def model_and_data(name):
    head = copy.deepcopy(HEADS[name])
    if name == 'classifier':
        return classifier(head), images()
    return segmentor(head), scenes(num_classes=head.get('num_classes', 4))


def measured(model, loader, scaler):
    head = head_of(model)
    threshold = getattr(head, 'thr', getattr(head, 'threshold', 0.5))
    images = predictions(model, loader, '', of_samples=True)
    result = before_and_after(images, [scaler], threshold=threshold)
    assert result['after']['NLL'] < result['before']['NLL']
    return result


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', SCALERS)
@pytest.mark.parametrize('name', HEADS)
def test_an_attached_model_predicts_what_the_scaler_says(name, method):
    scaler = SCALERS[method]()
    if ('sigmoid' if name == 'binary segmentor' else 'softmax') not in scaler.heads:
        return
    model, loader = model_and_data(name)
    draw_predictions(model, loader, of_samples=True).fit(scaler)
    with predictor(model, of_samples=True) as predict:
        before = [copy.deepcopy(image) for batch in loader for image in predict(batch)]
    calibrated = copy.deepcopy(attach(copy.deepcopy(model), attached(scaler)).eval())
    assert isinstance(calibrated, type(model))
    with predictor(calibrated, of_samples=True) as predict:
        after = [image for batch in loader for image in predict(batch)]
    for one, other in zip(before, after, strict=True):
        logits = other.logits[None]
        found = logits.sigmoid() if len(other.logits) == 1 else logits.softmax(1)
        expected = scaler.predict_proba(one.logits[None])[:, -len(other.logits) :]
        torch.testing.assert_close(found, expected.to(found), rtol=1e-4, atol=1e-5)
        if scaler.keeps_argmax and len(other.logits) > 1:
            key = 'pred_label' if 'pred_label' in one.sample else 'pred_sem_seg'
            was, now = (
                x if torch.is_tensor(x) else x['data'] for x in (one.sample[key], other.sample[key])
            )
            assert torch.equal(was, now)


def test_scores_of_masks_become_probabilities():
    model, loader = model_and_data('mask classifier')
    with predictor(model, of_samples=True) as predict:
        (image, *_) = predict(loader[0])
    scores = image.sample['seg_logits']['data']
    torch.testing.assert_close(image.logits.softmax(0), scores / scores.sum(0))
    layers, reason = layers_for(model, SCALERS['temperature'](), loader[0])
    assert not layers and 'no linear layer' in reason
    scaler = draw_predictions(model, loader, of_samples=True).fit(SCALERS['temperature']())
    assert measured(model, loader, scaler)['changed'] == 0


def test_the_model_itself_stays():
    model, (batch, *_) = model_and_data('classifier')
    scaler = SCALERS['temperature'].from_parameters({'temperature': 3.0})
    both = model, attach(copy.deepcopy(model), attached(scaler))
    with torch.no_grad():
        logits, same = (m(batch['inputs'], mode='tensor') for m in both)
        losses = [m(batch['inputs'], batch['data_samples'], mode='loss')['loss'] for m in both]
    assert torch.equal(logits, same) and torch.equal(*losses)
    torch.testing.assert_close(both[1].calibration(logits), logits / 3)


@pytest.mark.parametrize('with_scores', [True, False])
@pytest.mark.parametrize('method', ['temperature', 'platt', 'isotonic'])
def test_several_labels_for_an_image(method, with_scores):
    """Or none; of each image the second is not to be judged, where there are scores of labels."""
    init_default_scope('mmpretrain')
    head = dict(type='mmpretrain.MultiLabelLinearClsHead', num_classes=5, in_channels=8, thr=0.4)
    model, loader, generator = classifier(head), images(), torch.Generator().manual_seed(3)
    for sample in loader.dataset:
        score = torch.randint(2, (5,), generator=generator).float()
        sample.set_gt_label(score.nonzero()[:, 0])
        if with_scores:
            score[1] = -1
            sample.set_gt_score(score)
    scaler = SCALERS[method]()
    assert layers_for(model, scaler, loader[0]) == ([], 'each class has a separate sigmoid')
    drawn = draw_predictions(model, loader, of_samples=True)
    # By hand, one class after the other.
    with torch.no_grad():
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    kept = [k for k in range(5) if not (with_scores and k == 1)]
    truth = [[int(k in s.gt_label.tolist()) for k in kept] for s in loader.dataset]
    assert drawn.labels.tolist() == [y for row in truth for y in row]
    torch.testing.assert_close(drawn.logits[:, 0], logits[:, kept].flatten(), rtol=1e-4, atol=1e-4)
    result = measured(model, loader, drawn.fit(scaler))
    assert result['num_predictions'] == len(drawn.labels)
    calibrated = attach(copy.deepcopy(model), attached(scaler))
    samples = [sample for batch in loader for sample in calibrated.val_step(batch)]
    for sample, z in zip(samples, logits, strict=True):
        expected = scaler.predict_proba(z[:, None])[:, 1]
        torch.testing.assert_close(sample.pred_score, expected, rtol=1e-3, atol=1e-4)
        assert sample.pred_label.tolist() == (sample.pred_score >= 0.4).nonzero()[:, 0].tolist()
