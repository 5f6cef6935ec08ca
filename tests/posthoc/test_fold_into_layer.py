"""Which layer of a real head a scaling is folded into, and which heads refuse it."""

import copy

import pytest
import torch
from tiny_models import classifier, fcn_head, images, other_head, scenes, segmentor

from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.before_and_after import before_and_after
from mmcalib.posthoc.fold_into_layer import (
    TOLERANCE,
    NotFoldableError,
    find_predicting_layers,
    fold_layers,
    largest_difference,
    swapped_parameters,
)
from mmcalib.posthoc.model_logits import draw_predictions, predictions, predictor, reading
from mmcalib.posthoc.scaler import with_other_class

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)
CLASSIFIERS = {
    'linear': (LINEAR, 'vector', ['head.fc']),
    'one layer of ViT': (
        dict(type='VisionTransformerClsHead', num_classes=5, in_channels=8),
        'vector',
        ['head.layers.head'],
    ),
    # The hidden layer is as wide as there are classes.
    'two layers of ViT': (
        dict(type='VisionTransformerClsHead', num_classes=5, in_channels=8, hidden_dim=5),
        'vector',
        ['head.layers.head'],
    ),
    'stacked': (
        dict(type='StackedLinearClsHead', num_classes=5, in_channels=8, mid_channels=[5, 5]),
        'vector',
        ['head.layers.2.fc'],
    ),
    'the sum of two': (
        dict(type='ConformerHead', num_classes=5, in_channels=[8, 8]),
        'tokens',
        ['head.trans_cls_head', 'head.conv_cls_head'],
    ),
    'the mean of two': (
        dict(type='DeiTClsHead', num_classes=5, in_channels=8),
        'tokens',
        ['head.layers.head_dist', 'head.layers.head'],
    ),
}
AUXILIARY = fcn_head(channels=4, in_index=0)
SEGMENTORS = {
    'fcn': (dict(decode_head=fcn_head()), ['decode_head.conv_seg']),
    'auxiliary': (
        dict(decode_head=fcn_head(), auxiliary_head=[AUXILIARY, AUXILIARY]),
        ['decode_head.conv_seg'],
    ),
    'corners': (dict(decode_head=fcn_head(align_corners=True)), ['decode_head.conv_seg']),
    'binary': (
        dict(decode_head=fcn_head(2, out_channels=1, threshold=0.3)),
        ['decode_head.conv_seg'],
    ),
    'cascade': (
        dict(
            type='mmseg.CascadeEncoderDecoder',
            num_stages=2,
            decode_head=[
                fcn_head(),
                other_head('mmseg.OCRHead', ocr_channels=4),
            ],
        ),
        ['decode_head.1.conv_seg'],
    ),
    # Its last layer to run, of as many outputs, says which classes are in the image.
    'context': (
        dict(
            decode_head=other_head(
                'mmseg.EncHead', num_codes=4, in_channels=[8, 8], in_index=[0, 1]
            )
        ),
        ['decode_head.conv_seg'],
    ),
    # Three layers of as many outputs run, of which one predicts.
    'dual attention': (
        dict(decode_head=other_head('mmseg.DAHead', pam_channels=4)),
        ['decode_head.conv_seg'],
    ),
    # Its factors start from random ones at each prediction.
    'random bases': (
        dict(
            decode_head=other_head(
                'mmseg.LightHamHead',
                ham_channels=8,
                ham_kwargs=dict(MD_R=4),
                in_channels=[8, 8],
                in_index=[0, 1],
            )
        ),
        ['decode_head.conv_seg'],
    ),
    'slide': (dict(decode_head=fcn_head()), ['decode_head.conv_seg']),
}

AFFINE = [name for name in SCALERS if SCALERS[name].affine]


def make_segmentor(name):
    options, names = copy.deepcopy(SEGMENTORS[name])
    model = segmentor(**options)
    if name == 'slide':
        model.test_cfg.update(mode='slide', crop_size=(8, 8), stride=(5, 5))
    return model, names


def probabilities(logits):
    return with_other_class(logits).softmax(dim=1)


def difference(model, loader, scaler, tensors):
    """Return the largest difference of a folded model's probabilities from scaled ones."""
    with predictor(model) as predict:
        logits = [image.logits for batch in loader for image in predict(batch)]
    with swapped_parameters(model, tensors), predictor(model) as predict:
        folded = [image.logits for batch in loader for image in predict(batch)]
    found = (probabilities(z[None])[0] for z in folded)
    return largest_difference((scaler.predict_proba(z[None])[0] for z in logits), found)


def check(model, loader, names, method, tolerance=TOLERANCE):
    """Fold and run; the parameters that were not folded must be as they were."""
    before = copy.deepcopy(model.state_dict())
    assert (
        find_predicting_layers(model, reading(loader[0]), per_class=method != 'temperature')
        == names
    )
    drawn = draw_predictions(model, loader)
    scaler = SCALERS[method]().fit(drawn.logits, drawn.labels)
    tensors = fold_layers(model, names, scaler)
    assert {key.rsplit('.', 1)[0] for key in tensors} == set(names)
    assert difference(model, loader, scaler, tensors) <= tolerance
    threshold = getattr(head_of(model), 'threshold', 0.5)
    result = before_and_after(predictions(model, loader, ''), [scaler], threshold=threshold)
    assert result['after']['NLL'] < result['before']['NLL']
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # Gathered again from the folded model, they are the scaled ones.
    with swapped_parameters(model, tensors):
        folded = draw_predictions(model, loader)
    found, expected = probabilities(folded.logits), scaler.predict_proba(drawn.logits)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    return result


@pytest.mark.parametrize('method', AFFINE)
@pytest.mark.parametrize('name', CLASSIFIERS)
def test_classifiers(name, method):
    head, form, names = CLASSIFIERS[name]
    model, loader = classifier(head, form), images()
    if name == 'the sum of two' and method != 'temperature':  # would be shifted twice
        with pytest.raises(NotFoldableError):
            find_predicting_layers(model, reading(loader[0]), per_class=True)
        return
    result = check(model, loader, names, method)
    assert result['num_predictions'] == 12
    if method == 'temperature':
        assert result['changed'] == 0
        assert result['before']['accuracy'] == result['after']['accuracy']


@pytest.mark.parametrize('method', AFFINE)
@pytest.mark.parametrize('name', SEGMENTORS)
def test_segmentors(name, method):
    model, names = make_segmentor(name)
    loader = scenes(num_classes=2 if name == 'binary' else 4)
    result = check(model, loader, names, method)
    valid = sum(int((s.gt_sem_seg.data != 255).sum()) for s in loader.dataset)
    assert result['num_predictions'] == valid
    if method == 'temperature' and name != 'binary':
        assert result['changed'] == 0
    if method == 'temperature' and name == 'binary':
        assert (
            result['changed'] > 0
        )  # the threshold is not 0.5, and T moves probabilities towards it


REFUSED = {
    'cosine': (dict(type='ArcFaceClsHead', num_classes=5, in_channels=8), 'vector',
               r'halving head\.norm_product does not halve'),
}  # fmt: skip


@pytest.mark.parametrize('name', REFUSED)
def test_classifiers_that_refuse(name):
    head, form, message = REFUSED[name]
    model = classifier(head, form)
    loader = images()
    with pytest.raises(ValueError, match=message):
        find_predicting_layers(model, reading(loader[0]))


def test_a_head_that_changes_its_logits():
    model = classifier(LINEAR)
    model.head.forward = lambda feats: torch.nn.functional.normalize(model.head.fc(feats[-1]))
    with pytest.raises(ValueError, match=r'head\.fc does not halve'):
        find_predicting_layers(model, reading(images()[0]))
    model.head.forward = lambda feats: model.head.fc(feats[-1]).tanh()
    with pytest.raises(ValueError, match=r'head\.fc does not halve the logits'):
        find_predicting_layers(model, reading(images()[0]))
    # What no trial of halves shows, the proof does: here a cap.
    loader = images()
    with torch.no_grad():
        cap = 1.2 * max(model.head.fc(model.backbone(b['inputs'])[-1]).max() for b in loader)
    model.head.forward = lambda feats: model.head.fc(feats[-1]).clamp(max=cap)
    (name,) = find_predicting_layers(model, reading(loader[0]))
    drawn = draw_predictions(model, loader)
    scaler = SCALERS['temperature']().fit(drawn.logits, drawn.labels)
    scaler.temperature_ = 0.5
    tensors = fold_layers(model, [name], scaler)
    assert difference(model, loader, scaler, tensors) > 0.01


def test_a_layer_with_other_parameters():
    model = classifier(LINEAR)
    torch.nn.utils.parametrizations.weight_norm(model.head.fc)
    with pytest.raises(ValueError, match=r'halving head\.fc does not halve'):
        find_predicting_layers(model, reading(images()[0]))


def test_a_mask_transformer_refuses():
    head = dict(
        type='mmseg.SegmenterMaskTransformerHead', in_channels=8, channels=8, num_classes=4,
        num_layers=1, num_heads=1, embed_dims=8, dropout_ratio=0.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match='no linear layer that a scaling can be folded into'):
        find_predicting_layers(segmentor(head), reading(scenes()[0]))


def test_a_layer_without_a_bias():
    model = classifier(LINEAR)
    model.head.fc.bias = None
    loader = images()
    check(model, loader, ['head.fc'], 'temperature')
    with pytest.raises(ValueError, match='no linear layer'):
        find_predicting_layers(model, reading(loader[0]), per_class=True)


def test_a_grouped_convolution_takes_a_temperature_alone():
    """Its classes do not see the same features, so none can take away the mean of all."""
    head = fcn_head()
    model = segmentor(head)
    model.decode_head.conv_seg = torch.nn.Conv2d(8, 4, 1, groups=2)
    check(model, scenes(), ['decode_head.conv_seg'], 'temperature')
    with pytest.raises(ValueError, match='no linear layer'):
        find_predicting_layers(model, reading(scenes()[0]), per_class=True)


@pytest.mark.parametrize('method', AFFINE)
def test_what_is_added_to_all_logits_changes_no_folded_probability(method):
    loader, found = images(), []
    for offset in (0.0, 20.0):
        model = classifier(LINEAR)
        model.head.fc.bias.data += offset
        drawn = draw_predictions(model, loader)
        scaler = SCALERS[method]().fit(drawn.logits, drawn.labels)
        tensors = fold_layers(model, ['head.fc'], scaler)
        assert difference(model, loader, scaler, tensors) < TOLERANCE
        with swapped_parameters(model, tensors):
            found.append(probabilities(draw_predictions(model, loader).logits))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
