"""The mean of several predictions against a plain loop over them, in both toolboxes' models."""

import copy
from unittest import mock

import pytest
import references
import torch
from mmengine.structures import PixelData
from tiny_models import classifier, fcn_head, images, scenes, segmentor
from torch import nn

from mmcalib.errors import UserError
from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.openmmlab.ensembles.batch_views import repeat_image
from mmcalib.openmmlab.ensembles.mc_dropout import content_seed, dropout_layers
from mmcalib.openmmlab.sample_writing import probabilities_in

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)
BINARY = fcn_head(2, out_channels=1, threshold=0.3)
DROPPING = fcn_head(dropout_ratio=0.5)


def mean_model(members, **options):
    first, *others = members
    return MeanProbabilityModel(first, others=others, **options).eval()


def predict(model, batches):
    with torch.no_grad():
        return [sample for batch in copy.deepcopy(batches) for sample in model.test_step(batch)]


def read(sample):
    """Probabilities (N, K) and predicted classes (N,) of a data sample."""
    if 'pred_score' in sample:
        return sample.pred_score[None].double(), sample.pred_label
    scores = sample.seg_logits.data.flatten(1).T.double()
    probs = scores.softmax(1) if scores.shape[1] > 1 else torch.cat([1 - scores, scores], 1)
    return probs, sample.pred_sem_seg.data.flatten()


CASES = {
    'classifier': (lambda seed: classifier(LINEAR, seed=seed), images(7)),
    'segmentor': (lambda seed: segmentor(fcn_head(), seed=seed), scenes(3)),
    'binary': (lambda seed: segmentor(BINARY, seed=seed), scenes(3, num_classes=2)),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('temperature', [None, 1.7])
def test_mean_model_members_equals_loop(case, temperature):
    build, batches = CASES[case]
    members = [build(seed) for seed in range(3)]
    samples = predict(mean_model(members, temperature=temperature, disagreement=True), batches)
    assert len(samples) == len(batches.dataset)
    member_samples = [predict(member, batches) for member in members]
    for sample, *singles in zip(samples, *member_samples, strict=True):
        member_probs, member_predicted = zip(*map(read, singles), strict=True)
        means = []
        informations = []
        for probs_of_members in torch.stack(member_probs, 1):
            mean, information = references.mean_prediction(probs_of_members.log().tolist())
            means.append(mean)
            informations.append(information)
        scaled = torch.tensor(means).double() ** (1 / (temperature or 1))
        probs, predicted = read(sample)
        torch.testing.assert_close(probs, scaled / scaled.sum(1, True), rtol=1e-4, atol=1e-6)
        expected = probs[:, 1] > 0.3 if case == 'binary' else probs.argmax(1)
        assert torch.equal(predicted, expected.long())
        if case == 'classifier':
            actual = sample.mutual_information
        else:
            actual = sample.disagreement.mutual_information
            assert actual.shape == (1, 13, 17)
            predictions = sample.disagreement.predictions.flatten(1).long()
            assert torch.equal(predictions, torch.stack(member_predicted))
        expected = torch.tensor(informations).double()
        torch.testing.assert_close(actual.flatten().double(), expected, rtol=0, atol=1e-5)
    if case == 'segmentor' and temperature is None:  # The logits are logarithms of probabilities.
        assert sample.seg_logits.data.logsumexp(0).abs().max() < 1e-4


def flipped(batches):
    """Return the batches with an upright view of each image after a mirrored one."""
    views = []
    for batch in batches:
        mirrored = copy.deepcopy(batch)
        upright = copy.deepcopy(batch)
        mirrored['inputs'] = [image.flip(-1) for image in mirrored['inputs']]
        for sample in mirrored['data_samples']:
            sample.set_metainfo(dict(flip=True, flip_direction='horizontal'))
            sample.gt_sem_seg = PixelData(data=sample.gt_sem_seg.data.flip(-1))
        views.append({key: [mirrored[key], upright[key]] for key in batch})
    return views


def select_view(batches, view):
    return [{key: value[view] for key, value in batch.items()} for batch in batches]


def test_mean_model_views_are_averaged_with_upright_labels():
    batches = scenes(3)
    members = [segmentor(fcn_head(), seed=seed) for seed in range(2)]
    views = flipped(batches)
    samples = predict(mean_model(members), views)
    parts = (predict(member, select_view(views, view)) for member in members for view in range(2))
    for sample, original, *singles in zip(samples, batches.dataset, *parts, strict=True):
        expected = sum(read(single)[0] for single in singles) / 4
        torch.testing.assert_close(read(sample)[0], expected)
        assert torch.equal(sample.gt_sem_seg.data, original.gt_sem_seg.data)
    with pytest.raises(UserError, match='all views are flipped'):
        predict(mean_model(members), select_view(views, slice(1)))


def dropping_classifier(seed=0):
    model = classifier(LINEAR, seed=seed)
    model.backbone.conv = nn.Sequential(
        model.backbone.conv, nn.BatchNorm2d(8), nn.Dropout(0.4)
    ).eval()
    return model


DROPOUT_CASES = {
    'classifier': (dropping_classifier, images(5, batch_size=3)),
    'segmentor': (lambda seed: segmentor(DROPPING, seed=seed), scenes(3)),
}


@pytest.mark.parametrize('case', DROPOUT_CASES)
@pytest.mark.parametrize('at_once', [1, 4])
def test_mean_model_dropout_equals_loop_over_images(case, at_once):
    build, batches = DROPOUT_CASES[case]
    member = build(0)
    state = copy.deepcopy(member.state_dict())
    model = mean_model([member], mc_dropout=6, passes_at_once=at_once, seed=3, disagreement=True)
    before = torch.get_rng_state()
    samples = predict(model, batches)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in member.state_dict().items())
    assert not any(module.training for module in model.modules())

    # The loop predicts each image by itself, with its own seed.
    images_of_batches = []
    for batch in batches:
        images_of_batches += [(batch, index) for index in range(len(batch['inputs']))]
    sizes = [1] * 6 if at_once == 1 else [4, 2]
    for sample, (batch, index) in zip(samples, images_of_batches, strict=True):
        torch.manual_seed(content_seed(batch['inputs'][index], 3, 0))
        for layer in dropout_layers(member):
            layer.train()
        copies = [repeat_image(batch, index, size) for size in sizes]
        probs = [probabilities_in(prediction) for prediction in predict(member, copies)]
        member.eval()
        torch.testing.assert_close(probabilities_in(sample), sum(probs) / 6)
        assert not torch.allclose(probs[0], probs[1])


@pytest.mark.parametrize('case', DROPOUT_CASES)
def test_mean_model_dropout_other_batches_same_predictions(case):
    build, batches = DROPOUT_CASES[case]
    model = mean_model([build(0), build(1)], mc_dropout=3)
    singles = []
    for batch in batches:
        for index in range(len(batch['data_samples'])):
            singles.append({key: values[index : index + 1] for key, values in batch.items()})
    expected = predict(model, batches)
    actual = predict(model, singles[::-1])[::-1]
    for sample, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(probabilities_in(other), probabilities_in(sample))
    other_seed = predict(mean_model([build(0), build(1)], mc_dropout=3, seed=1), batches)
    assert not torch.allclose(probabilities_in(expected[0]), probabilities_in(other_seed[0]))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_mean_model_half_precision_becomes_single(dtype):
    samples = predict(classifier(LINEAR), images(3))
    for sample in samples:
        sample.pred_score = sample.pred_score.to(dtype)
    model = mean_model([classifier(LINEAR)], temperature=2.0)
    for sample in model.merge_preds([[sample, sample] for sample in samples]):
        assert sample.pred_score.dtype == (dtype if dtype == torch.float64 else torch.float32)


def test_mean_model_invalid_member_or_option_raises():
    one = classifier(LINEAR)
    sigmoid = dict(type='mmseg.CrossEntropyLoss', use_sigmoid=True)
    auxiliary = segmentor(fcn_head(dropout_ratio=0), auxiliary_head=DROPPING)
    for members, options, message in (
        ([one, classifier({**LINEAR, 'num_classes': 4})], {}, 'member 2 has 4 .* member 1 has 5'),
        ([classifier({**LINEAR, 'type': 'MultiLabelLinearClsHead'})], {}, 'predicts each class'),
        ([segmentor(fcn_head(loss_decode=sigmoid))], {}, 'FCNHead was trained .*use_sigmoid'),
        ([dropping_classifier(), one], dict(mc_dropout=2), 'member 2 has no dropout layer'),
        ([auxiliary], dict(mc_dropout=2), 'member 1 has no dropout layer'),
        ([one], dict(mc_dropout=-1), 'mc_dropout'),
        ([one], dict(passes_at_once=0), 'passes_at_once'),
        ([one], dict(temperature=0.0), 'temperature'),
    ):
        with pytest.raises(ValueError, match=message):
            mean_model(members, **options)
    assert mean_model([segmentor(fcn_head(2, out_channels=1, loss_decode=sigmoid))])


def test_mean_model_member_of_other_size_or_no_softmax_is_named():
    model = mean_model([segmentor(fcn_head()), segmentor(fcn_head())])
    postprocess = model.others[0].postprocess_result
    model.others[0].postprocess_result = lambda logits, samples: postprocess(
        logits, [sample.set_metainfo(dict(ori_shape=(5, 6))) or sample for sample in samples]
    )
    with pytest.raises(UserError, match=r'^member 2, of 0\.jpg: .*\(4, 5, 6\), .*\(4, 13, 17\)'):
        predict(model, scenes())
    model = mean_model([classifier(LINEAR)])
    model.module.head._get_predictions = lambda scores, samples: [
        sample.set_pred_score(score) for sample, score in zip(samples, scores, strict=True)
    ]
    with pytest.raises(UserError, match=r'member 1.*take the softmax first'):
        predict(model, images())


@pytest.mark.parametrize('case', CASES)
def test_mean_model_member_with_nan_later_is_named(case):
    build, (first, *others) = CASES[case]
    model = mean_model([build(0), build(1)])
    model.names[1] = 'b.pth'
    predict(model, [first])
    for parameter in model.others[0].parameters():
        parameter.data[:] = float('nan')
    with pytest.raises(UserError, match=r'^b\.pth, of .*: its prediction has .* NaN or infinite'):
        predict(model, others)


def test_mean_model_size_that_a_member_refuses_is_named():
    model = mean_model([segmentor(fcn_head()), segmentor(fcn_head(), seed=1)])
    model.names[1] = 'b.pth'
    refuse = mock.Mock(side_effect=AssertionError('The input image size should be divisible'))
    model.others[0].backbone.forward = refuse
    (batch, *_) = scenes()
    views = {key: [values] * 3 for key, values in batch.items()}
    for data, hint in ((batch, ''), (views, '; --tta-scales chooses the sizes of views')):
        with pytest.raises(UserError) as error:
            predict(model, [data])
        assert str(error.value) == f'b.pth, of 0.jpg: {refuse.side_effect}{hint}'
