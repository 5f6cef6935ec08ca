"""Which layer of a real head a scaling is folded into, and which heads refuse it."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    classifier,
    draw_predictions,
    fcn_head,
    images,
    other_head,
    scenes,
    segmentor,
)

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
from mmcalib.posthoc.model_logits import predictions, predictor, reading
from mmcalib.posthoc.scaler import with_other_class


def head(kind, **options):
    return dict(type=kind, num_classes=5, in_channels=8) | options


LINEAR, VIT = head('LinearClsHead'), 'VisionTransformerClsHead'
# A head, the form of its features, and the layers that predict.
CLASSIFIERS = {
    'linear': (LINEAR, 'vector', ['fc']),
    'one layer of ViT': (head(VIT), 'vector', ['layers.head']),
    # The hidden layer is as wide as there are classes.
    'two layers of ViT': (head(VIT, hidden_dim=5), 'vector', ['layers.head']),
    'stacked': (head('StackedLinearClsHead', mid_channels=[5, 5]), 'vector', ['layers.2.fc']),
    'the sum of two': (
        head('ConformerHead', in_channels=[8, 8]),
        'tokens',
        ['trans_cls_head', 'conv_cls_head'],
    ),
    'the mean of two': (head('DeiTClsHead'), 'tokens', ['layers.head_dist', 'layers.head']),
}
TWO_MAPS = dict(in_channels=[8, 8], in_index=[0, 1])
CASCADE = [fcn_head(), other_head('mmseg.OCRHead', ocr_channels=4)]
HAMBURGER = dict(ham_channels=8, ham_kwargs=dict(MD_R=4))
SEGMENTORS = {
    'fcn': dict(decode_head=fcn_head()),
    'auxiliary': dict(
        decode_head=fcn_head(), auxiliary_head=[fcn_head(channels=4, in_index=0)] * 2
    ),
    'corners': dict(decode_head=fcn_head(align_corners=True)),
    'binary': dict(decode_head=fcn_head(2, out_channels=1, threshold=0.3)),
    'cascade': dict(type='mmseg.CascadeEncoderDecoder', num_stages=2, decode_head=CASCADE),
    # Its last layer to run, of as many outputs, says which classes are in the image.
    'context': dict(decode_head=other_head('mmseg.EncHead', num_codes=4, **TWO_MAPS)),
    # Three layers of as many outputs run, of which one predicts.
    'dual attention': dict(decode_head=other_head('mmseg.DAHead', pam_channels=4)),
    # Its factors start from random ones at each prediction.
    'random bases': dict(decode_head=other_head('mmseg.LightHamHead', **HAMBURGER, **TWO_MAPS)),
    'slide': dict(decode_head=fcn_head()),
}

AFFINE = [name for name in SCALERS if SCALERS[name].affine]


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
    head, form, layers = CLASSIFIERS[name]
    model, loader = classifier(head, form), images()
    if name == 'the sum of two' and method != 'temperature':  # would be shifted twice
        with pytest.raises(NotFoldableError):
            find_predicting_layers(model, reading(loader[0]), per_class=True)
        return
    result = check(model, loader, [f'head.{layer}' for layer in layers], method)
    assert result['num_predictions'] == 12
    if method == 'temperature':
        assert result['changed'] == 0
        assert result['before']['accuracy'] == result['after']['accuracy']


@pytest.mark.parametrize('method', AFFINE)
@pytest.mark.parametrize('name', SEGMENTORS)
def test_segmentors(name, method):
    model = segmentor(**copy.deepcopy(SEGMENTORS[name]))
    if name == 'slide':
        model.test_cfg.update(mode='slide', crop_size=(8, 8), stride=(5, 5))
    loader = scenes(num_classes=2 if name == 'binary' else 4)
    layer = 'decode_head.1.conv_seg' if name == 'cascade' else 'decode_head.conv_seg'
    result = check(model, loader, [layer], method)
    valid = sum(int((s.gt_sem_seg.data != 255).sum()) for s in loader.dataset)
    assert result['num_predictions'] == valid
    if method == 'temperature':  # of a threshold that is not 0.5, it moves probabilities towards it
        assert (result['changed'] > 0) == (name == 'binary')


# A classifier whose head is another, and what is done to it.
REFUSED = {
    'cosine': (head('ArcFaceClsHead'), lambda m: None, r'head\.norm_product does not halve'),
    'normalised': (LINEAR, lambda m: after(m, F.normalize), r'head\.fc does not halve the logits'),
    'tanh': (LINEAR, lambda m: after(m, torch.tanh), r'head\.fc does not halve the logits'),
    'weight norm': (
        LINEAR,
        lambda m: torch.nn.utils.parametrizations.weight_norm(m.head.fc),
        r'head\.fc does not halve',
    ),
}


def after(model, function):
    model.head.forward = lambda feats: function(model.head.fc(feats[-1]))


@pytest.mark.parametrize('name', REFUSED)
def test_classifiers_that_refuse(name):
    head, change, message = REFUSED[name]
    model = classifier(head)
    change(model)
    with pytest.raises(ValueError, match=message):
        find_predicting_layers(model, reading(images()[0]))


def test_what_no_trial_of_halves_shows_the_proof_does():
    model, loader = classifier(LINEAR), images()
    with torch.no_grad():
        cap = 1.2 * max(model.head.fc(model.backbone(b['inputs'])[-1]).max() for b in loader)
    after(model, lambda logits: logits.clamp(max=cap))
    names, drawn = (
        find_predicting_layers(model, reading(loader[0])),
        draw_predictions(model, loader),
    )
    scaler = SCALERS['temperature']().fit(drawn.logits, drawn.labels)
    scaler.temperature_ = 0.5
    assert difference(model, loader, scaler, fold_layers(model, names, scaler)) > 0.01
    nan, one = torch.tensor([math.nan]), torch.ones(1)
    assert largest_difference([one, one], [one, nan]) == math.inf


@pytest.mark.parametrize('kind', ['without a bias', 'grouped'])
def test_a_layer_that_takes_a_temperature_alone(kind):
    """Or whose classes do not see the same features, so none can take away the mean of all."""
    if kind == 'grouped':
        model, loader, name = segmentor(fcn_head()), scenes(), 'decode_head.conv_seg'
        model.decode_head.conv_seg = torch.nn.Conv2d(8, 4, 1, groups=2)
    else:
        model, loader, name = classifier(LINEAR), images(), 'head.fc'
        model.head.fc.bias = None
    check(model, loader, [name], 'temperature')
    with pytest.raises(ValueError, match='no linear layer'):
        find_predicting_layers(model, reading(loader[0]), per_class=True)
