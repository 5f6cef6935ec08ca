"""Models of both toolboxes: their logits, drawn and scaled, by a layer or behind the model."""

import copy
import math

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from tiny_models import (
    classifier,
    draw_predictions,
    fcn_head,
    images,
    mmseg_head,
    scenes,
    segmentor,
)
from torch import nn

from mmcalib.calibration import draw
from mmcalib.calibration.effect import measure_effect
from mmcalib.calibration.folds import fit_scaler
from mmcalib.calibration.place import fold_layers, largest_difference
from mmcalib.openmmlab.calibrated_model import attach
from mmcalib.openmmlab.runner_source import RunnerSource, predictor
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import scaling_module
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.predictions.image_predictions import ImagePredictions


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


def of_images(kind='LinearClsHead', form='vector', change=lambda model: None, **options):
    model = classifier(dict(type=kind, num_classes=5, in_channels=8) | options, form)
    change(model)
    return model, images()


def of_scenes(head=None, change=lambda model: None, **options):
    head = copy.deepcopy(head or fcn_head())
    loader = scenes(num_classes=head.get('num_classes', 4) if isinstance(head, dict) else 4)
    model = segmentor(head, **copy.deepcopy(options))
    change(model)
    return model, loader


def then(function):
    def change(model):
        model.head.forward = lambda feats: function(model.head.fc(feats[-1]))

    return change


def without_bias(model):
    model.head.fc.bias = None


def grouped(model):
    model.decode_head.conv_seg = nn.Conv2d(8, 4, 1, groups=2)


VIT, CONV = 'VisionTransformerClsHead', 'decode_head.conv_seg'
TWO_MAPS = dict(in_channels=[8, 8], in_index=[0, 1])
BINARY = fcn_head(2, out_channels=1, threshold=0.3)
TRANSFORMER = dict(num_layers=1, num_heads=1, embed_dims=8, norm_cfg=dict(type='LN'))
# How a model is made, and the layers that predict; those that take scales and shifts of the
# classes, where these are others.
CASES = {
    'linear': (of_images, {}, ['head.fc']),
    'one layer of ViT': (of_images, dict(kind=VIT), ['head.layers.head']),
    # The hidden layer is as wide as there are classes.
    'two layers of ViT': (of_images, dict(kind=VIT, hidden_dim=5), ['head.layers.head']),
    'stacked': (
        of_images, dict(kind='StackedLinearClsHead', mid_channels=[5, 5]), ['head.layers.2.fc'],
    ),
    'the sum of two': (  # would be shifted twice
        of_images, dict(kind='ConformerHead', form='tokens', in_channels=[8, 8]),
        ['head.trans_cls_head', 'head.conv_cls_head'], [],
    ),
    'the mean of two': (
        of_images, dict(kind='DeiTClsHead', form='tokens'),
        ['head.layers.head_dist', 'head.layers.head'],
    ),
    'tanh': (of_images, dict(change=then(torch.tanh)), []),
    'weight norm': (
        of_images, dict(change=lambda m: nn.utils.parametrizations.weight_norm(m.head.fc)), [],
    ),
    'without a bias': (of_images, dict(change=without_bias), ['head.fc'], []),
    # Of which no class sees the features of all, and none can take away the mean of all.
    'grouped': (of_scenes, dict(change=grouped), [CONV], []),
    'fcn': (of_scenes, {}, [CONV]),
    'auxiliary': (of_scenes, dict(auxiliary_head=[fcn_head(channels=4, in_index=0)] * 2), [CONV]),
    'corners': (of_scenes, dict(head=fcn_head(align_corners=True)), [CONV]),
    'binary': (of_scenes, dict(head=BINARY), [CONV]),
    'cascade': (
        of_scenes,
        dict(
            type='mmseg.CascadeEncoderDecoder', num_stages=2,
            head=[fcn_head(), mmseg_head('mmseg.OCRHead', ocr_channels=4)],
        ),
        ['decode_head.1.conv_seg'],
    ),
    # Its last layer to run, of as many outputs, says which classes are in the image.
    'context': (of_scenes, dict(head=mmseg_head('mmseg.EncHead', num_codes=4, **TWO_MAPS)), [CONV]),
    # Three layers of as many outputs run, of which one predicts.
    'dual attention': (of_scenes, dict(head=mmseg_head('mmseg.DAHead', pam_channels=4)), [CONV]),
    # Its factors start from random ones at each prediction.
    'random bases': (
        of_scenes,
        dict(head=mmseg_head(
            'mmseg.LightHamHead', ham_channels=8, ham_kwargs=dict(MD_R=4), **TWO_MAPS
        )),
        [CONV],
    ),
    'slide': (
        of_scenes, dict(test_cfg=dict(mode='slide', crop_size=(8, 8), stride=(5, 5))), [CONV],
    ),
    'mask transformer': (
        of_scenes, dict(head=mmseg_head('mmseg.SegmenterMaskTransformerHead', **TRANSFORMER)), [],
    ),
    'mask classifier': (of_scenes, dict(head=dict(type='MaskClassifier')), []),
}  # fmt: skip
# Those to which every method is attached that no layer absorbs.
ANY = ('linear', 'binary', 'mask transformer', 'mask classifier')
PAIRS = [
    (name, method)
    for name in CASES
    for method, kind in SCALERS.items()
    if ('sigmoid' if name == 'binary' else 'softmax') in kind.heads
    if name in ANY or kind.affine
]


def effect_on(model, loader, scaler, source):
    batches = source.read(model, '')
    effect = measure_effect(batches, [scaler], threshold=source.threshold)
    assert effect.after['NLL'] < effect.before['NLL']
    return effect


def predicted_classes(sample):
    values = sample.get('pred_label', sample.get('pred_sem_seg'))
    return values if torch.is_tensor(values) else values.data


def valid_pixels(sample):
    mask = sample.get('gt_sem_seg')
    return ... if mask is None else mask.data != 255


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(('name', 'method'), PAIRS)
def test_a_calibrated_model_predicts_what_the_scaler_says(name, method):
    """Folded into the layers that are found, or attached; the given one stays as it is."""
    make, options, *expected = CASES[name]
    scaler, (model, loader) = SCALERS[method](), make(**options)
    model.train()
    before = copy.deepcopy(model.state_dict())
    source = RunnerSource(model, loader)
    placement = source.expected_placement(model, scaler)
    expected_layers = expected[-1 if scaler.per_class else 0] if scaler.affine else []
    assert placement.layers == expected_layers
    assert placement.layers or not scaler.affine or 'no linear layer' in placement.reason
    source.use_placement(placement)
    from_scores = source.from_scores
    drawn = draw_predictions(model, loader, from_scores=from_scores)
    fit_scaler(scaler, drawn, drawn.rows.images)
    calibrated = copy.deepcopy(model)
    if placement.layers:
        folded = fold_layers(model, placement.layers, scaler)
        assert {key.rsplit('.', 1)[0] for key in folded} == set(placement.layers)
        calibrated.load_state_dict(folded, strict=False)
    else:
        calibrated = copy.deepcopy(attach(calibrated, scaling_module(scaler)))
        assert isinstance(calibrated, type(model))
    both = []
    for one in (model, calibrated):
        images = []
        with predictor(one, from_scores=from_scores) as predict:
            for batch in loader:
                predicted = copy.deepcopy(predict(batch))
                images += zip(predicted.samples, predicted.logits, strict=True)
        both.append(images)
    changed = 0
    for (sample, logits), (scaled_sample, scaled_logits) in zip(*both, strict=True):
        actual = scaler.probabilities(scaled_logits[None])
        expected = scaler.predict_proba(logits[None]).to(actual)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        classes, scaled_classes = predicted_classes(sample), predicted_classes(scaled_sample)
        if name == 'binary':
            assert torch.equal(scaled_classes.bool(), actual[0, 1:] > 0.3)
        elif scaler.keeps_argmax:
            assert torch.equal(classes, scaled_classes)
        if name == 'mask classifier':
            scores = sample.seg_logits.data
            torch.testing.assert_close(logits.softmax(0), scores / scores.sum(0))
        changed += int((classes != scaled_classes)[valid_pixels(sample)].sum())
    effect = effect_on(model, loader, scaler, source)
    assert effect.num_predictions == drawn.population
    assert effect.changed == changed
    if method == 'temperature':  # of a threshold that is not 0.5, it moves probabilities towards it
        assert (changed > 0) == (name == 'binary')
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training and 'postprocess_result' not in vars(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_model_itself_stays():
    model, (batch, *_) = of_images()
    scaler = SCALERS['temperature'].from_parameters({'temperature': 3.0})
    both = model, attach(copy.deepcopy(model), scaling_module(scaler))
    with torch.no_grad():
        logits, same = (m(batch['inputs'], mode='tensor') for m in both)
        losses = [m(batch['inputs'], batch['data_samples'], mode='loss')['loss'] for m in both]
    assert torch.equal(logits, same) and torch.equal(*losses)
    torch.testing.assert_close(both[1].calibration(logits), logits / 3)


@pytest.mark.parametrize('with_scores', [True, False])
@pytest.mark.parametrize('method', ['temperature', 'platt', 'isotonic'])
def test_several_labels_each_have_a_scaling(method, with_scores):
    """Or none; of each image the second is not to be judged, where there are scores of labels."""
    init_default_scope('mmpretrain')
    model = classifier(dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8, thr=0.4))
    loader = images(n=80)
    with torch.no_grad():
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    generator = torch.Generator().manual_seed(3)
    probs = (logits / 4).sigmoid()
    truth = (torch.rand(probs.shape, generator=generator) < probs).long()
    for sample, score in zip(loader.dataset, truth, strict=True):
        sample.set_gt_label(score.nonzero()[:, 0])
        if with_scores:
            score[1] = -1
            sample.set_gt_score(score.float())
    scaler = ScalerPerLabel(SCALERS[method]())
    source = RunnerSource(model, loader)
    placement = source.expected_placement(model, SCALERS[method]())
    assert placement.layers == (['head.fc'] if scaler.affine else [])
    source.use_placement(placement)
    drawn = draw_predictions(model, loader, from_scores=source.from_scores)
    torch.testing.assert_close(drawn.logits, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(drawn.labels, truth)
    fit_scaler(scaler, drawn, drawn.rows.images)
    # By hand, one class after the other.
    expected = []
    for label, (z, y) in enumerate(zip(logits.T, truth.T, strict=True)):
        if with_scores and label == 1:
            rows = logits[:, [0, 2, 3, 4]].reshape(-1, 1), truth[:, [0, 2, 3, 4]].flatten()
        else:
            rows = z[:, None], y
        one = SCALERS[method]().fit(*rows)
        expected.append(one.predict_proba(z[:, None])[:, 1])
    expected = torch.stack(expected, dim=1)
    effect = effect_on(model, loader, scaler, source)
    assert effect.num_predictions == int((truth >= 0).sum())
    calibrated = copy.deepcopy(model)
    if placement.layers:
        calibrated.load_state_dict(fold_layers(model, placement.layers, scaler), strict=False)
    else:
        attach(calibrated, scaling_module(scaler))
    samples = [sample for batch in loader for sample in calibrated.val_step(batch)]
    for sample, probs_of_image in zip(samples, expected, strict=True):
        probs_of_image = probs_of_image.to(sample.pred_score)
        torch.testing.assert_close(sample.pred_score, probs_of_image, rtol=1e-3, atol=1e-3)
        assert sample.pred_label.tolist() == (sample.pred_score >= 0.4).nonzero()[:, 0].tolist()


def test_the_logits_are_those_behind_the_predictions():
    model, loader = of_images()
    drawn = draw_predictions(model, loader)
    with torch.no_grad():
        expected = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    torch.testing.assert_close(drawn.logits, expected.log_softmax(dim=1))
    assert drawn.labels.tolist() == [int(s.gt_label) for s in loader.dataset]
    assert drawn.rows.images.tolist() == list(range(12)) and drawn.num_images == 12

    model, loader = of_scenes()
    drawn = draw_predictions(model, loader)
    with torch.no_grad():
        evaluated = [s for batch in loader for s in model.val_step(batch)]
    valid = [s.gt_sem_seg.data[0] != 255 for s in evaluated]
    expected = torch.cat([s.seg_logits.data[:, v].T for s, v in zip(evaluated, valid, strict=True)])
    torch.testing.assert_close(drawn.logits, expected)
    assert drawn.population == sum(int(v.sum()) for v in valid)


def test_a_binary_segmentors_logits_are_from_before_the_sigmoid():
    model, loader = of_scenes(BINARY)
    with torch.no_grad():  # so large that the sigmoid is exactly 1
        model.decode_head.conv_seg.weight *= 40
    with predictor(model) as predict, predictor(model, from_scores=True) as predict_scores:
        predicted, rounded = predict(loader[0]), predict_scores(loader[0])
    sample, exact, rounded = predicted.samples[0], predicted.logits[0], rounded.logits[0]
    probs = sample.seg_logits.data
    assert (probs == 1).any() and exact.abs().max() > 40 > 18 > rounded.max()
    assert exact.shape == probs.shape == (1, 13, 17)
    for logits in (exact, rounded):
        torch.testing.assert_close(logits.sigmoid(), probs)
    assert torch.equal(sample.pred_sem_seg.data.bool(), probs > 0.3)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='no valid prediction in 2 images'):
        loader = scenes(n=2)
        for sample in loader.dataset:
            sample.gt_sem_seg.data[:] = 255
        draw_predictions(segmentor(fcn_head()), loader)
    with pytest.raises(ValueError, match=r'sample 0 .*NaN'):
        model, loader = of_images()
        model.head.fc.weight.data[0] = float('nan')
        draw_predictions(model, loader)
    with pytest.raises(ValueError, match=r'0\.jpg has .* labels outside \[0, 4\)'):
        draw_predictions(segmentor(fcn_head()), scenes(num_classes=9))
    nan, one = torch.tensor([math.nan]), torch.ones(1)
    assert largest_difference([one, one], [one, nan]) == math.inf


@pytest.mark.parametrize('batch_size', [1, 4])
def test_the_draw(batch_size):
    model, loader = of_scenes()
    one = draw_predictions(model, loader, num_samples=50)
    assert len(one.labels) == 50 < one.population
    other = draw_predictions(model, scenes(batch_size=batch_size), num_samples=50)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.rows.images, other.rows.images)
    again = draw_predictions(model, loader, num_samples=50, seed=1)
    assert not torch.equal(one.logits, again.logits)


def test_every_prediction_is_as_likely():
    """Whatever the sizes of the images, and whatever was drawn of another one."""

    class ByPlace:
        def gather(self, value):
            return [value]

        def image_seeds(self, part):
            return part.images.tolist()

    counts, together = torch.zeros(60), 0
    maps = []
    for image, numbers in enumerate(torch.arange(60).split([10, 20, 30])):
        maps.append(
            ImagePredictions(
                predicted=numbers[None],
                logits=numbers[None, None].double(),
                labels=numbers[None],
                images=torch.tensor([image]),
            )
        )
    for seed in range(2000):
        drawn = draw.draw_predictions(maps, ByPlace(), num_samples=12, seed=seed)
        numbers = drawn.labels.tolist()
        assert len(numbers) == 12 and numbers == sorted(numbers)
        counts[numbers] += 1
        together += {0, 10} <= {*numbers}
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), atol=0.04, rtol=0)
    by_image = torch.stack([part.mean() for part in counts.split([10, 20, 30])])
    torch.testing.assert_close(by_image / 2000, torch.full((3,), 0.2), atol=0.006, rtol=0)
    assert together < 2000 * 0.07
