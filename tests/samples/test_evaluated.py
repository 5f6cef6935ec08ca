import math

import pytest
import torch
from samples import as_segmented, classified, flatten, probabilities, segmented

from mmcalib.samples.evaluated import read_prediction


def read(sample, **options):
    options['wanted'] = set(options.get('wanted', ()))
    return read_prediction(sample, **dict(ignore_index=255, name='image.jpg') | options)


@pytest.mark.parametrize('samples', [classified(20), segmented(3)], ids=['mmpretrain', 'mmseg'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_confidence_and_correctness(samples, dtype):
    for sample in samples:
        if 'pred_score' in sample:
            sample = sample | {'pred_score': sample['pred_score'].to(dtype)}
        else:
            sample = sample | {'seg_logits': {'data': sample['seg_logits']['data'].to(dtype)}}
        conf, correct = read(sample)[:2]
        expected = flatten([sample])
        assert conf.dtype == dtype
        torch.testing.assert_close(conf, torch.tensor(expected[0], dtype=dtype))
        assert correct.tolist() == expected[1]


@pytest.mark.parametrize('samples', [classified(20), segmented(3)], ids=['mmpretrain', 'mmseg'])
@pytest.mark.parametrize(
    'wanted', [[], ['nll'], ['brier'], ['own'], ['predicted', 'nll', 'brier', 'own']]
)
def test_what_is_wanted(samples, wanted):
    for sample in samples:
        prediction = read(sample, wanted=wanted)
        probs, labels = map(torch.tensor, probabilities([sample]))
        own = probs[range(len(labels)), labels]
        expected = {
            'predicted': probs.argmax(1),
            'own': own,
            'nll': -own.double().log().sum(),
            'brier': (probs - torch.eye(probs.shape[1])[labels]).double().square().sum(),
        }
        for name, value in expected.items():
            found = getattr(prediction, name)
            if name in wanted:
                torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)
            else:
                assert found is None
        assert prediction.num_classes == probs.shape[1] and prediction.classes is None


@pytest.mark.parametrize('samples', [classified(20), segmented(3)], ids=['mmpretrain', 'mmseg'])
@pytest.mark.parametrize('floor', [0, 0.06, 0.3, 0.6, 1.0])
def test_probabilities_of_all_classes_are_listed_down_to_a_floor(samples, floor):
    for sample in samples:
        classes = read(sample, wanted=['classes'], floor=floor).classes
        probs, labels = map(torch.tensor, probabilities([sample]))
        assert classes.count == len(labels)
        assert torch.equal(classes.labels, torch.bincount(labels, minlength=probs.shape[1]))
        for k, column in enumerate(probs.T):
            listed = classes.prob[classes.klass == k]
            if floor < 0.5:
                assert len(listed) == (column >= floor).sum()
            assert len(listed) >= (column >= floor).sum()
            torch.testing.assert_close(
                classes.below[k] + listed.double().sum(),
                column.double().sum(),
                rtol=1e-6,
                atol=1e-6,
            )
            assert classes.below[k] >= 0
            assert (classes.is_label & (classes.klass == k)).sum() <= (labels == k).sum()
        if floor == 0:
            assert classes.is_label.sum() == len(labels)


def test_a_region_keeps_its_pixels():
    sample = segmented(3)[2]
    wanted = ['nll', 'brier', 'classes']
    part = read(sample, wanted=wanted, region=lambda label: label > 1)
    label = sample['gt_sem_seg']['data'].clone()
    label[label <= 1] = 255
    whole = read(sample | {'gt_sem_seg': {'data': label}}, wanted=wanted)
    assert part.conf.numel() and part.predicted is whole.predicted is None
    for one, other in zip(
        (part.conf, part.correct, part.nll, part.brier, *part.classes),
        (whole.conf, whole.correct, whole.nll, whole.brier, *whole.classes),
        strict=True,
    ):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))
    for options in (dict(region=lambda label: label > 1), dict(wanted=['distance'])):
        with pytest.raises(ValueError, match='require a segmentor'):
            read(classified(1)[0], **options)


def test_label_255_of_a_classifier_is_a_class():
    scores = torch.full((300,), 0.1 / 299)
    scores[255] = 0.9
    conf, correct = read({'pred_score': scores, 'gt_label': torch.tensor([255])})[:2]
    assert conf.item() == pytest.approx(0.9) and correct.all()


@pytest.mark.parametrize('threshold', [0.3, 0.5])
def test_binary_head_is_confident_of_the_class_it_predicts(threshold):
    probability = torch.tensor([[0.1, 0.4, 0.9]])
    predicted = (probability > threshold).float()
    label = torch.tensor([[0, 1, 255]])
    wanted = ['nll', 'brier', 'classes']
    prediction = read(as_segmented(probability[None], predicted, label), wanted=wanted)
    conf, correct = prediction[:2]
    expected = [0.9, 0.4 if threshold == 0.3 else 0.6]
    torch.testing.assert_close(conf, torch.tensor(expected))
    assert correct.tolist() == [True, threshold == 0.3]
    assert prediction.nll.item() == pytest.approx(-math.log(0.9) - math.log(0.4))
    assert prediction.brier.item() == pytest.approx(2 * 0.1**2 + 2 * 0.6**2)
    assert prediction.classes.klass.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(prediction.classes.prob, torch.tensor([0.9, 0.6, 0.1, 0.4]))


def test_half_precision_is_read_in_float32():
    sample = segmented(1)[0]
    logits = sample['seg_logits']['data'].half()
    conf = read(as_segmented(logits, logits.argmax(0), sample['gt_sem_seg']['data'][0])).conf
    assert conf.dtype == torch.float32 and (conf <= 1).all()


def test_extreme_logits_are_confidence_one():
    logits = torch.tensor([1e4, -1e4, 0.0])[:, None, None].expand(3, 2, 2)
    label = torch.tensor([[0, 0], [2, 1]])
    prediction = read(
        as_segmented(logits, logits.argmax(0), label), wanted=['nll', 'brier', 'classes']
    )
    assert (prediction.conf == 1).all()
    assert prediction.nll == 3e4 and prediction.brier == 4
    assert prediction.classes.prob.tolist() == [1, 0, 0] * 4 or prediction.classes.klass.numel()


@pytest.mark.parametrize('offset', [1e5, -1e5, 1e7, 1e30])
def test_a_constant_added_to_all_logits_changes_nothing(offset):
    # Steps of 1 and of 2**4, which 1e7 leaves as they are.
    logits = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 2, 2)
    label = torch.tensor([[0, 1], [2, 0]])
    wanted = ['nll', 'brier', 'classes']
    plain = read(as_segmented(logits, logits.argmax(0), label), wanted=wanted)
    moved = logits + offset
    if offset == 1e30:  # all the same
        assert (
            read(as_segmented(moved, moved.argmax(0), label)).conf.tolist()
            == [pytest.approx(1 / 3)] * 4
        )
        return
    moved = read(as_segmented(moved, logits.argmax(0), label), wanted=wanted)
    assert plain.conf.tolist() == pytest.approx([math.e / (math.e + 2)] * 4)
    torch.testing.assert_close(moved.conf, plain.conf)
    for name in ('nll', 'brier'):
        assert getattr(moved, name).item() == pytest.approx(getattr(plain, name).item(), rel=1e-6)
    torch.testing.assert_close(moved.classes.prob, plain.classes.prob)


def test_the_largest_logits_there_are():
    logits = torch.tensor([3e38, -3e38, 0.0])[:, None, None].expand(3, 1, 2)
    label = torch.tensor([[0, 1]])
    prediction = read(
        as_segmented(logits, logits.argmax(0), label), wanted=['nll', 'brier', 'classes']
    )
    assert prediction.brier == 2 and prediction.nll.item() == pytest.approx(6e38)
    assert prediction.conf.tolist() == [1, 1]


@pytest.mark.parametrize('logit', [20.0, -20.0, 90.0, -90.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_a_saturated_binary_head_counts_what_its_type_can_tell(logit, dtype):
    probability = torch.tensor([[logit]]).sigmoid().to(dtype)
    label = torch.tensor([[int(logit < 0)]])  # wrong
    found = read(
        as_segmented(probability[None], probability > 0.5, label), wanted=['nll']
    ).nll.item()
    least = {torch.float32: (25, 126), torch.float16: (12, 25)}[dtype]  # near 1, near 0
    assert found == pytest.approx(min(abs(logit), math.log(2) * least[logit < 0]), rel=1e-3)


def test_a_class_probability_that_half_precision_rounds_to_nothing():
    scores = torch.tensor([1.0, 0.0]).half()
    sample = {'pred_score': scores, 'gt_label': torch.tensor([1])}
    assert read(sample, wanted=['nll']).nll.item() == pytest.approx(25 * math.log(2))


@pytest.mark.parametrize('piece_bytes', [1, 1 << 12, 1 << 30])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16])
def test_pieces_of_any_size_give_the_same(piece_bytes, dtype, monkeypatch):
    sample = segmented(3, num_classes=6, size=(40, 50))[2]
    sample['seg_logits']['data'] = sample['seg_logits']['data'].to(dtype)
    sample['pred_sem_seg']['data'] = sample['seg_logits']['data'].argmax(0, keepdim=True)
    options = dict(wanted=['nll', 'brier', 'classes', 'predicted'], floor=0.06)
    whole = read(sample, **options)
    monkeypatch.setattr('mmcalib.samples.predictions.PIECE_BYTES', piece_bytes)
    pieces = read(sample, **options)
    assert torch.equal(whole.conf, pieces.conf) and torch.equal(whole.correct, pieces.correct)
    assert torch.equal(whole.predicted, pieces.predicted)
    assert whole.nll.item() == pytest.approx(pieces.nll.item(), rel=1e-9)
    assert whole.brier.item() == pytest.approx(pieces.brier.item(), rel=1e-6)
    torch.testing.assert_close(whole.classes.below, pieces.classes.below, rtol=1e-5, atol=1e-5)
    for one, other in ((whole, pieces), (pieces, whole)):
        keys = one.classes.klass.double() + one.classes.prob.double() / 2
        others = other.classes.klass.double() + other.classes.prob.double() / 2
        assert torch.equal(keys.sort().values, others.sort().values)


def test_an_image_without_valid_pixels():
    sample = segmented(1)[0]
    sample['gt_sem_seg']['data'].fill_(255)
    assert read(sample).conf.numel() == 0


def _broken(kind):
    sample = segmented(1)[0] if kind in SEGMENTED else classified(1)[0]
    logits = sample.get('seg_logits', {}).get('data')
    if kind == 'nan':
        logits[1, 0, :3] = float('nan')
    elif kind == 'inf':
        logits[0, 5, 5] = float('inf')
    elif kind == 'size':
        sample['gt_sem_seg']['data'] = torch.zeros(1, 6, 8, dtype=int)
    elif kind == 'label':
        sample['gt_sem_seg']['data'][0, 0, :2] = 5
    elif kind == 'tta':
        sample['pred_sem_seg']['data'] = (sample['pred_sem_seg']['data'] + 1) % 5
    elif kind == 'no ground truth':
        del sample['gt_sem_seg']
    elif kind == 'no prediction':
        del sample['pred_sem_seg']
    elif kind == 'binary logits':
        sample = as_segmented(logits[:1] * 5, (logits[0] > 0).float(), logits[0].long() * 0)
    elif kind == 'nan score':
        sample['pred_score'][2] = float('nan')
    elif kind == 'sigmoid scores':
        sample['pred_score'] = torch.full((7,), 0.4)
    elif kind == 'above one':
        sample['pred_score'] = torch.tensor([1.00001, 0, 0, 0, 0, 0, 0])
    elif kind == 'class':
        sample['gt_label'] = torch.tensor([7])
    elif kind == 'multi-label':
        sample['gt_label'] = torch.tensor([1, 2])
    elif kind == 'labels only':
        del sample['pred_score']
    return sample


SEGMENTED = [
    'nan', 'inf', 'size', 'label', 'tta', 'no ground truth', 'no prediction', 'binary logits'
]  # fmt: skip


@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        ('nan', 'seg_logits of image.jpg has 3 NaN or infinite values out of 1020'),
        ('inf', 'has 1 NaN or infinite'),
        ('size', r'\(12, 17\), gt_sem_seg \(6, 8\).*LoadAnnotations must come after Resize'),
        ('label', r'2 labels outside \[0, 5\): 5\. check the dataset'),
        ('tta', 'not the argmax of its seg_logits at 204 pixels'),
        ('no ground truth', 'needs LoadAnnotations'),
        ('no prediction', 'image.jpg has no pred_sem_seg, only '),
        ('binary logits', 'are no probabilities'),
        ('nan score', 'pred_score of image.jpg has 1 NaN'),
        ('sigmoid scores', 'do not sum to 1, such as 2.8'),
        ('above one', r'outside \[0, 1\], such as 1.00001: take the softmax first'),
        ('class', r'outside \[0, 7\): 7\. check'),
        ('multi-label', r'needs one gt_label; got \[1, 2\]'),
        ('labels only', 'neither pred_score .* nor seg_logits'),
    ],
)
def test_broken_samples_are_refused_by_name(kind, message):
    with pytest.raises(ValueError, match=message):
        read(_broken(kind))
