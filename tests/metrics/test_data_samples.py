import pytest
import torch
from metrics.samples import as_segmented, classified, flatten, probabilities, segmented

from mmcalib.metrics.data_samples import read_prediction


def read(sample, **options):
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
@pytest.mark.parametrize('wanted', [[], ['nll'], ['brier'], ['nll', 'brier', 'probs']])
def test_what_is_wanted(samples, wanted):
    for sample in samples:
        prediction = read(sample, wanted=wanted)
        probs, labels = map(torch.tensor, probabilities([sample]))
        expected = {
            'nll': -probs[range(len(labels)), labels].log(),
            'brier': (probs - torch.eye(probs.shape[1])[labels]).square().sum(1),
            'probs': probs.T,
        }
        assert prediction.label.tolist() == labels.tolist()
        for name, value in expected.items():
            found = getattr(prediction, name)
            if name in wanted:
                torch.testing.assert_close(found, value.to(found), rtol=1e-4, atol=1e-6)
            else:
                assert found is None


def test_a_region_keeps_its_pixels():
    sample = segmented(3)[2]
    whole = read(sample, wanted=['probs'])
    part = read(sample, wanted=['probs'], region=lambda label: label > 1)
    torch.testing.assert_close(part.conf, whole.conf[whole.label > 1])
    torch.testing.assert_close(part.probs, whole.probs[:, whole.label > 1])
    with pytest.raises(ValueError, match="only the protocol 'pooled'"):
        read(classified(1)[0], region=lambda label: label > 1)


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
    wanted = ['nll', 'brier', 'probs']
    prediction = read(as_segmented(probability[None], predicted, label), wanted=wanted)
    conf, correct = prediction[:2]
    expected = [0.9, 0.4 if threshold == 0.3 else 0.6]
    torch.testing.assert_close(conf, torch.tensor(expected))
    assert correct.tolist() == [True, threshold == 0.3]
    torch.testing.assert_close(prediction.nll, -torch.tensor([0.9, 0.4]).log())
    torch.testing.assert_close(prediction.brier, torch.tensor([2 * 0.1**2, 2 * 0.6**2]))
    torch.testing.assert_close(prediction.probs, torch.tensor([[0.9, 0.6], [0.1, 0.4]]))


def test_half_precision_is_read_in_float32():
    sample = segmented(1)[0]
    logits = sample['seg_logits']['data'].half()
    conf = read(as_segmented(logits, logits.argmax(0), sample['gt_sem_seg']['data'][0])).conf
    assert conf.dtype == torch.float32 and (conf <= 1).all()


def test_extreme_logits_are_confidence_one():
    logits = torch.tensor([1e4, -1e4, 0.0])[:, None, None].expand(3, 2, 2)
    label = torch.tensor([[0, 0], [2, 1]])
    prediction = read(
        as_segmented(logits, logits.argmax(0), label), wanted=['nll', 'brier', 'probs']
    )
    assert (prediction.conf == 1).all()
    assert prediction.nll.tolist() == [0, 0, 1e4, 2e4]
    assert prediction.brier.tolist() == [0, 0, 2, 2]
    assert prediction.probs.T.tolist() == [[1, 0, 0]] * 4


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


SEGMENTED = ['nan', 'inf', 'size', 'label', 'tta', 'no ground truth', 'binary logits']


@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        ('nan', 'seg_logits of image.jpg has 3 NaN or infinite values out of 1020'),
        ('inf', 'has 1 NaN or infinite'),
        ('size', r'\(12, 17\), gt_sem_seg \(6, 8\).*LoadAnnotations must come after Resize'),
        ('label', r'2 labels outside \[0, 5\), such as \[5\]'),
        ('tta', 'not the argmax of its seg_logits at 204 pixels'),
        ('no ground truth', 'needs LoadAnnotations'),
        ('binary logits', 'are no probabilities'),
        ('nan score', 'pred_score of image.jpg has 1 NaN'),
        ('sigmoid scores', 'sums to 2.8'),
        ('above one', 'its largest value is 1.00001'),
        ('class', r'outside \[0, 7\), such as \[7\]'),
        ('multi-label', r'needs one gt_label; got \[1, 2\]'),
        ('labels only', 'neither pred_score .* nor seg_logits'),
    ],
)
def test_broken_samples_are_refused_by_name(kind, message):
    with pytest.raises(ValueError, match=message):
        read(_broken(kind))
