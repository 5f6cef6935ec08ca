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


def mean_of(members, **options):
    first, *others = members
    return MeanProbabilityModel(first, others=others, **options).eval()


def predict(model, batches):
    with torch.no_grad():
        return [sample for batch in copy.deepcopy(batches) for sample in model.test_step(batch)]


def read(sample):
    """Probabilities, (rows, K), and labels, (rows,), that a data sample says."""
    if 'pred_score' in sample:
        return sample.pred_score[None].double(), sample.pred_label
    scores = sample.seg_logits.data.flatten(1).T.double()
    scores = scores.softmax(1) if scores.shape[1] > 1 else torch.cat([1 - scores, scores], 1)
    return scores, sample.pred_sem_seg.data.flatten()


CASES = {
    'classifier': (lambda seed: classifier(LINEAR, seed=seed), images(7)),
    'segmentor': (lambda seed: segmentor(fcn_head(), seed=seed), scenes(3)),
    'binary': (lambda seed: segmentor(BINARY, seed=seed), scenes(3, num_classes=2)),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('temperature', [None, 1.7])
def test_it_predicts_what_a_loop_over_its_members_does(case, temperature):
    build, batches = CASES[case]
    members = [build(seed) for seed in range(3)]
    samples = predict(mean_of(members, temperature=temperature, disagreement=True), batches)
    assert len(samples) == len(batches.dataset)
    for sample, *singles in zip(samples, *(predict(m, batches) for m in members), strict=True):
        rows, labels = zip(*map(read, singles), strict=True)
        expected = [references.mean_prediction(row.log().tolist()) for row in torch.stack(rows, 1)]
        mean, information = (torch.tensor(each).double() for each in zip(*expected, strict=True))
        mean = mean ** (1 / (temperature or 1))
        probs, label = read(sample)
        torch.testing.assert_close(probs, mean / mean.sum(1, True), rtol=1e-4, atol=1e-6)
        found = probs[:, 1] > 0.3 if case == 'binary' else probs.argmax(1)
        assert torch.equal(label, found.long())
        if case == 'classifier':
            found = sample.mutual_information
        else:
            found = sample.disagreement.mutual_information
            assert found.shape == (1, 13, 17)
            assert torch.equal(
                sample.disagreement.predictions.flatten(1).long(), torch.stack(labels)
            )
        torch.testing.assert_close(found.flatten().double(), information, rtol=0, atol=1e-5)
    if (case, temperature) == ('segmentor', None):  # logarithms of probabilities
        assert sample.seg_logits.data.logsumexp(0).abs().max() < 1e-4


def flipped(batches):
    """Return the batches with an upright view of each image after a mirrored one."""
    views = []
    for batch in batches:
        mirrored, upright = copy.deepcopy(batch), copy.deepcopy(batch)
        mirrored['inputs'] = [image.flip(-1) for image in mirrored['inputs']]
        for sample in mirrored['data_samples']:
            sample.set_metainfo(dict(flip=True, flip_direction='horizontal'))
            sample.gt_sem_seg = PixelData(data=sample.gt_sem_seg.data.flip(-1))
        views.append({key: [mirrored[key], upright[key]] for key in batch})
    return views


def of_view(batches, view):
    return [{key: value[view] for key, value in batch.items()} for batch in batches]


def test_views_are_averaged_and_labels_are_the_upright_view_s():
    batches, members = scenes(3), [segmentor(fcn_head(), seed=seed) for seed in range(2)]
    views = flipped(batches)
    samples = predict(mean_of(members), views)
    parts = (predict(member, of_view(views, view)) for member in members for view in range(2))
    for sample, given, *singles in zip(samples, batches.dataset, *parts, strict=True):
        torch.testing.assert_close(read(sample)[0], sum(read(each)[0] for each in singles) / 4)
        assert torch.equal(sample.gt_sem_seg.data, given.gt_sem_seg.data)
    with pytest.raises(UserError, match='all views are flipped'):
        predict(mean_of(members), of_view(views, slice(1)))


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
def test_dropout_is_drawn_by_the_seed_and_the_image(case, at_once):
    build, batches = DROPOUT_CASES[case]
    member = build(0)
    state = copy.deepcopy(member.state_dict())
    model = mean_of([member], mc_dropout=6, passes_at_once=at_once, seed=3, disagreement=True)
    before = torch.get_rng_state()
    samples = predict(model, batches)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in member.state_dict().items())
    assert not any(module.training for module in model.modules())

    # The plain loop: each image by itself, with its own seed.
    singles = [(b, place) for b in batches for place in range(len(b['inputs']))]
    for sample, (batch, place) in zip(samples, singles, strict=True):
        torch.manual_seed(content_seed(batch['inputs'][place], 3, 0))
        for layer in dropout_layers(member):
            layer.train()
        copies = [repeat_image(batch, place, n) for n in ([1] * 6 if at_once == 1 else [4, 2])]
        probs = [probabilities_in(each) for each in predict(member, copies)]
        member.eval()
        torch.testing.assert_close(probabilities_in(sample), sum(probs) / 6)
        assert not torch.allclose(probs[0], probs[1])


@pytest.mark.parametrize('case', DROPOUT_CASES)
def test_dropout_does_not_depend_on_the_batch_nor_the_order(case):
    build, batches = DROPOUT_CASES[case]
    model = mean_of([build(0), build(1)], mc_dropout=3)
    singles = [
        {key: values[place : place + 1] for key, values in batch.items()}
        for batch in reversed(batches)
        for place in reversed(range(len(batch['data_samples'])))
    ]
    one, other = predict(model, batches), predict(model, singles)[::-1]
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(probabilities_in(a), probabilities_in(b))
    another = predict(mean_of([build(0), build(1)], mc_dropout=3, seed=1), batches)
    assert not torch.allclose(probabilities_in(one[0]), probabilities_in(another[0]))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_becomes_single_and_double_stays(dtype):
    samples = predict(classifier(LINEAR), images(3))
    for sample in samples:
        sample.pred_score = sample.pred_score.to(dtype)
    model = mean_of([classifier(LINEAR)], temperature=2.0)
    for sample in model.merge_preds([[sample, sample] for sample in samples]):
        assert sample.pred_score.dtype == (dtype if dtype == torch.float64 else torch.float32)


def test_what_has_no_mean_is_refused():
    one, sigmoid = classifier(LINEAR), dict(type='mmseg.CrossEntropyLoss', use_sigmoid=True)
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
            mean_of(members, **options)
    assert mean_of([segmentor(fcn_head(2, out_channels=1, loss_decode=sigmoid))])


def test_a_member_of_another_size_or_without_a_softmax_is_named():
    model = mean_of([segmentor(fcn_head()), segmentor(fcn_head())])
    postprocess = model.others[0].postprocess_result
    model.others[0].postprocess_result = lambda logits, samples: postprocess(
        logits, [sample.set_metainfo(dict(ori_shape=(5, 6))) or sample for sample in samples]
    )
    with pytest.raises(UserError, match=r'^member 2, of 0\.jpg: .*\(4, 5, 6\), .*\(4, 13, 17\)'):
        predict(model, scenes())
    model = mean_of([classifier(LINEAR)])
    model.module.head._get_predictions = lambda scores, samples: [
        sample.set_pred_score(score) for sample, score in zip(samples, scores, strict=True)
    ]
    with pytest.raises(UserError, match=r'member 1.*take the softmax first'):
        predict(model, images())


@pytest.mark.parametrize('case', CASES)
def test_a_member_whose_scores_are_nan_from_some_image_on_is_named(case):
    build, (first, *others) = CASES[case]
    model = mean_of([build(0), build(1)])
    model.names[1] = 'b.pth'
    predict(model, [first])
    for parameter in model.others[0].parameters():
        parameter.data[:] = float('nan')
    with pytest.raises(UserError, match=r'^b\.pth, of .*: its prediction has .* NaN or infinite'):
        predict(model, others)


def test_a_size_that_a_member_does_not_take_is_named():
    model = mean_of([segmentor(fcn_head()), segmentor(fcn_head(), seed=1)])
    model.names[1] = 'b.pth'
    refuse = mock.Mock(side_effect=AssertionError('The input image size should be divisible'))
    model.others[0].backbone.forward = refuse
    (batch, *_) = scenes()
    views = {key: [values] * 3 for key, values in batch.items()}
    for given, hint in ((batch, ''), (views, '; --tta-scales chooses the sizes of views')):
        with pytest.raises(UserError) as error:
            predict(model, [given])
        assert str(error.value) == f'b.pth, of 0.jpg: {refuse.side_effect}{hint}'
