"""The mean of several predictions against a plain loop over them, in both toolboxes' models."""

import copy

import pytest
import references
import torch
from mmengine.structures import PixelData
from tiny_models import classifier, fcn_head, images, scenes, segmentor
from torch import nn

from mmcalib.checks import UserError
from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.ensembles.mc_dropout import seed_of
from mmcalib.samples.writing import probabilities_in

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)
BINARY = fcn_head(2, out_channels=1, threshold=0.3)
DROPPING = fcn_head(dropout_ratio=0.5)


def mean_of(members, **options):
    first, *others = members
    return MeanProbabilityModel(first, others=others, **options).eval()


def predict(model, batches):
    with torch.no_grad():
        return [sample for batch in copy.deepcopy(batches) for sample in model.test_step(batch)]


def logits_of(model, batches):
    """Return the logits of each image, (rows, K), as the model alone computes them."""
    if hasattr(model, 'decode_head'):
        maps = [sample.seg_logits.data for sample in predict(model, batches)]
        if len(maps[0]) == 1:
            maps = [p.double().clamp(1e-12, 1 - 1e-12).logit() for p in maps]
            maps = [torch.cat([torch.zeros_like(z), z]) for z in maps]
        return [each.flatten(1).T for each in maps]
    with torch.no_grad():
        return [row[None] for batch in batches for row in model(batch['inputs'], mode='tensor')]


def in_a_loop(logits, temperature=1.0):
    """Return mean (rows, K), and mutual information (rows,) of (N, rows, K) logits."""
    found = [references.mean_prediction(rows.tolist()) for rows in logits.double().movedim(0, 1)]
    mean, information = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*found, strict=True)
    )
    return mean.pow(1 / temperature) / mean.pow(1 / temperature).sum(1, True), information


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
    model = mean_of(members, temperature=temperature, disagreement=True)
    samples = predict(model, batches)
    per_member = zip(*[logits_of(member, batches) for member in members], strict=True)
    assert len(samples) == len(batches.dataset)
    for sample, logits in zip(samples, per_member, strict=True):
        mean, information = in_a_loop(torch.stack(logits), temperature or 1.0)
        if case == 'classifier':
            scores, label = sample.pred_score[None], sample.pred_label
            found = sample.mutual_information
        else:
            scores = sample.seg_logits.data.flatten(1).T
            if case == 'segmentor' and temperature is None:  # logarithms of probabilities
                assert scores.logsumexp(1).abs().max() < 1e-4
            scores = scores if case == 'binary' else scores.softmax(1)
            label = sample.pred_sem_seg.data.flatten()
            found = sample.disagreement.mutual_information
            assert found.shape == (1, 13, 17)
            single = torch.stack(logits).softmax(dim=2)
            single = single[..., 1] > 0.3 if case == 'binary' else single.argmax(dim=2)
            own = sample.disagreement.predictions.flatten(1).long()
            assert own.shape == single.shape and (own == single).float().mean() > 0.999
        expected = mean[:, 1:] if case == 'binary' else mean
        torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-6)
        if case == 'binary':
            assert torch.equal(label.bool(), scores[:, 0] > 0.3)
        else:
            assert torch.equal(label, scores.argmax(1))
        torch.testing.assert_close(found.flatten().double(), information, rtol=0, atol=1e-5)


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


def test_views_are_averaged_and_labels_are_the_upright_view_s():
    batches = scenes(3)
    members = [segmentor(fcn_head(), seed=seed) for seed in range(2)]
    samples = predict(mean_of(members), flipped(batches))
    for number, sample in enumerate(samples):
        probs = 0
        for member in members:
            for batch in flipped(batches):
                for view in range(2):
                    each = {key: value[view] for key, value in batch.items()}
                    for one in predict(member, [each]):
                        if one.img_path == f'{number}.jpg':
                            probs = probs + one.seg_logits.data.softmax(0) / 4
        torch.testing.assert_close(sample.seg_logits.data.softmax(0), probs)
        assert torch.equal(sample.gt_sem_seg.data, batches.dataset[number].gt_sem_seg.data)


def test_labels_that_may_be_flipped_are_refused():
    batches = flipped(scenes(1))
    only = [{key: [value[0]] for key, value in batch.items()} for batch in batches]
    with pytest.raises(UserError, match='all views are flipped'):
        predict(mean_of([segmentor(fcn_head())]), only)


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
    layers = [
        module for module in member.modules() if isinstance(module, nn.Dropout | nn.Dropout2d)
    ]
    number = 0
    for batch in batches:
        for image, label in zip(batch['inputs'], batch['data_samples'], strict=True):
            torch.manual_seed(seed_of(image, 3, 0))
            probs = []
            for layer in layers:
                layer.train()
            for count in [1] * 6 if at_once == 1 else [4, 2]:
                one = {
                    'inputs': [image] * count,
                    'data_samples': [label.clone() for _ in range(count)],
                }
                if case == 'classifier':
                    one['inputs'] = torch.stack(one['inputs'])
                probs += [probabilities_in(s) for s in predict(member, [one])]
            member.eval()
            torch.testing.assert_close(probabilities_in(samples[number]), sum(probs) / 6)
            assert not torch.allclose(probs[0], probs[1])
            number += 1


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


def test_members_that_have_no_common_mean_are_named():
    with pytest.raises(ValueError, match='member 2 has 4 classes, but member 1 has 5'):
        mean_of([classifier(LINEAR), classifier({**LINEAR, 'num_classes': 4})])
    model = mean_of([segmentor(fcn_head()), segmentor(fcn_head())])
    postprocess = model.others[0].postprocess_result
    model.others[0].postprocess_result = lambda logits, samples: postprocess(
        logits, [sample.set_metainfo(dict(ori_shape=(5, 6))) or sample for sample in samples]
    )
    with pytest.raises(UserError, match=r'^member 2, of 0\.jpg: .*\(4, 5, 6\), .*\(4, 13, 17\)'):
        predict(model, scenes())


def test_scores_that_are_no_softmax_are_refused():
    with pytest.raises(ValueError, match='member 1: MultiLabelLinearClsHead predicts each class'):
        mean_of([classifier({**LINEAR, 'type': 'MultiLabelLinearClsHead'})])
    loss = dict(type='mmseg.CrossEntropyLoss', use_sigmoid=True)
    with pytest.raises(
        ValueError, match=r'FCNHead was trained with a separate sigmoid.*use_sigmoid'
    ):
        mean_of([segmentor(fcn_head(loss_decode=loss))])
    assert mean_of([segmentor(fcn_head(2, out_channels=1, loss_decode=loss))])
    model = mean_of([classifier(LINEAR)])
    model.module.head._get_predictions = lambda scores, samples: [
        sample.set_pred_score(score) for sample, score in zip(samples, scores, strict=True)
    ]
    with pytest.raises(UserError, match=r'member 1.*take the softmax first'):
        predict(model, images())


@pytest.mark.parametrize('case', CASES)
def test_a_member_whose_scores_are_nan_from_some_image_on_is_named(case):
    build, batches = CASES[case]
    model = mean_of([build(0), build(1)])
    model.names[1] = 'b.pth'
    first, *others = batches
    predict(model, [first])
    for parameter in model.others[0].parameters():
        parameter.data[:] = float('nan')
    with pytest.raises(UserError, match=r'^b\.pth, of .*: its prediction has .* NaN or infinite'):
        predict(model, others)


@pytest.mark.parametrize('views', [1, 3])
def test_a_size_that_a_member_does_not_take_is_named(views):
    model = mean_of([segmentor(fcn_head()), segmentor(fcn_head(), seed=1)])
    model.names[1] = 'b.pth'

    def refuse(inputs):
        raise AssertionError('The input image size (13, 17) should be divisible')

    model.others[0].backbone.forward = refuse
    (batch, *_) = scenes()
    if views > 1:
        batch = {key: [values] * views for key, values in batch.items()}
    with pytest.raises(UserError, match=r'^b\.pth, of 0\.jpg: The input image size') as error:
        predict(model, [batch])
    assert str(error.value).endswith('--tta-scales chooses the sizes of views') == (views > 1)


def test_a_model_without_dropout_has_no_random_passes():
    with pytest.raises(ValueError, match='member 2 has no dropout layer'):
        mean_of([dropping_classifier(), classifier(LINEAR)], mc_dropout=2)
    model = segmentor(fcn_head(dropout_ratio=0), auxiliary_head=DROPPING)
    with pytest.raises(ValueError, match='member 1 has no dropout layer'):
        mean_of([model], mc_dropout=2)


def test_options_out_of_range_are_refused():
    for options in (dict(mc_dropout=-1), dict(passes_at_once=0), dict(temperature=0.0)):
        with pytest.raises(ValueError, match=next(iter(options))):
            mean_of([classifier(LINEAR)], **options)
