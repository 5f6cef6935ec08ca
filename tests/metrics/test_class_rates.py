"""Two classes: the ECE of P(y = 1), and mean probabilities beside frequencies, by every door."""

import math

import numpy as np
import pytest
import torch
from doors import by_door, stream_of
from torchmetrics.functional.classification import binary_calibration_error

import mmcalib
from mmcalib.metrics.class_rates import ClassRates


def weighted_sigmoid(num_images=1_000):
    """Return logits that predict too many positives, and labels."""
    torch.manual_seed(0)
    true_logits = 2 * torch.randn(num_images) - 1
    labels = (torch.rand(num_images) < true_logits.sigmoid()).long()
    return true_logits + 1.5, labels


def test_one_sigmoid_ece_of_class_1_comes_first_by_every_door():
    logits, labels = weighted_sigmoid()
    expected = 100 * binary_calibration_error(logits.sigmoid(), labels, n_bins=15).item()
    for measured in by_door(logits[:, None], labels).values():
        assert measured.names[:2] == ['ClasswiseECE', 'ECE']
        assert measured['ClasswiseECE'] == pytest.approx(expected, abs=1e-3)
        assert measured['ClasswiseECE'] > 2 * measured['ECE']
        assert str(measured).splitlines()[2].startswith('ECE of P(y = 1) (%)')


def test_one_sigmoid_of_several_labels_each_has_ece_of_class_1():
    logits, labels = weighted_sigmoid()
    several = mmcalib.measure(
        torch.stack([logits.sigmoid()] * 2, dim=1), torch.stack([labels] * 2, dim=1)
    )
    single = mmcalib.measure(logits.sigmoid(), labels)
    assert several['ClasswiseECE'] == pytest.approx([single['ClasswiseECE']] * 2)
    assert several['ClasswiseECE_macro'] == pytest.approx(single['ClasswiseECE'])


def test_one_sigmoid_named_metrics_stay_those_that_are_named():
    logits, labels = weighted_sigmoid()
    for measured in by_door(logits[:, None], labels, metrics=['ECE', 'NLL']).values():
        assert measured.names == ['ECE', 'NLL']
    assert isinstance(mmcalib.measure(logits.sigmoid(), labels, 'ECE'), float)


@pytest.mark.parametrize('num_classes', [2, 5])
def test_classwise_ece_interval_any_split_of_the_data_is_the_same(num_classes):
    torch.manual_seed(0)
    probs = (2 * torch.randn(300, num_classes)).softmax(dim=1)
    labels = torch.multinomial(probs, 1)[:, 0]
    names = ['ClasswiseECE', 'rate_gap']
    expected = mmcalib.measure(probs, labels, names, interval=0.9)
    batches = zip(probs.log().split(70), labels.split(70), strict=True)
    actual = stream_of(batches, metrics=names, interval=0.9).compute()
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, abs=1e-3)
    # The probabilities are calibrated, so that both errors are noise.
    assert [expected[f'{name}_low'] for name in names] == [0.0, 0.0]
    sharpened = mmcalib.measure(
        probs**3 / (probs**3).sum(1, keepdim=True), labels, names, interval=0.9
    )
    assert 0 < sharpened['ClasswiseECE_low'] < sharpened['ClasswiseECE']


def test_rate_gap_interval_of_maps_counts_images_and_groups():
    torch.manual_seed(0)
    shift = torch.randn(40, 1, 1, 1)
    logits = shift + torch.randn(40, 1, 6, 6)
    labels = (torch.rand(40, 6, 6) < logits[:, 0].sigmoid()).long()
    by_image = mmcalib.measure(logits.sigmoid(), labels, ['rate_gap'], interval=0.9)
    groups = [index // 4 for index in range(40)]
    by_group = mmcalib.measure(logits.sigmoid(), labels, ['rate_gap'], interval=0.9, groups=groups)
    assert by_image['rate_gap'] == pytest.approx(by_group['rate_gap'])
    assert by_image.num_units == 40
    assert by_group.num_units == 10
    assert len(by_group.rates.standard_errors) == 2


def test_many_classes_have_no_interval_of_classes_and_the_result_says_so():
    torch.manual_seed(0)
    probs = torch.randn(60, 40).softmax(dim=1)
    labels = torch.randint(40, (60,))
    measured = mmcalib.measure(probs, labels, ['ECE', 'ClasswiseECE'], interval=0.9)
    assert measured.names_without_interval == ['ClasswiseECE']


def test_class_rates_equal_a_loop_with_standard_errors_over_units():
    generator = np.random.default_rng(0)
    count = generator.integers(1, 9, size=30).astype(float)
    labels = np.floor(generator.uniform(size=(30, 2)) * count[:, None])
    probs = generator.uniform(size=(30, 2)) * count[:, None]
    totals = torch.tensor(np.stack([np.stack([count] * 2, 1), labels, probs], axis=1))
    rates = ClassRates.from_totals(totals)
    for k in range(2):
        mean_prob = probs[:, k].sum() / count.sum()
        frequency = labels[:, k].sum() / count.sum()
        assert rates.probs[k] == pytest.approx(100 * mean_prob)
        assert rates.frequencies[k] == pytest.approx(100 * frequency)
        squares = 0.0
        for unit in range(30):
            gap = probs[unit, k] - labels[unit, k]
            squares += (gap - count[unit] * (mean_prob - frequency)) ** 2
        expected = 100 * math.sqrt(squares * 30 / 29) / count.sum()
        assert rates.standard_errors[k] == pytest.approx(expected)


def test_rates_sentence_weighted_sigmoid_names_both_rates_and_the_remedy():
    logits, labels = weighted_sigmoid()
    text = str(mmcalib.measure(logits.sigmoid(), labels, interval=0.95))
    frequency = 100 * labels.double().mean().item()
    mean_prob = 100 * logits.sigmoid().mean().item()
    assert f'P(y = 1) is {mean_prob:.1f} % on average, and {frequency:.1f} % of the labels' in text
    assert 'platt or auto' in text
    calibrated = mmcalib.measure((logits - 1.5).sigmoid(), labels, interval=0.95)
    assert 'on average' not in str(calibrated)


def test_rates_sentence_of_several_classes_names_those_that_differ():
    rates = ClassRates([50.0, 30.0, 20.0], [40.0, 30.5, 29.5], [1.0, 1.0, 1.0])
    assert rates.differing == [0, 2]
    (sentence,) = rates.sentences()
    assert 'of the classes 0 (50.0 and 40.0 %), 2 (20.0 and 29.5 %)' in sentence
    assert 'vector or auto' in sentence


def test_rates_of_pixels_chosen_by_their_labels_are_not_told():
    logits, labels = weighted_sigmoid(num_images=5_000)
    maps = [logits.view(50, 1, 10, 10), labels.view(50, 10, 10)]
    measured = {}
    for protocol in ('pooled', 'foreground'):
        stream = stream_of([maps], metrics=['ClasswiseECE'], interval=0.95, protocol=protocol)
        measured[protocol] = stream.compute()
    assert sorted(measured['pooled'].rates.differing) == [0, 1]
    assert measured['foreground'].rates is None
    assert 'P(y = 1) is' not in str(measured['foreground'])


def test_rates_of_one_label_are_those_of_class_1():
    rates = ClassRates([42.0], [26.0], [1.0], are_of_labels=True)
    (sentence,) = rates.sentences()
    assert sentence.startswith('P(y = 1) is 42.0 % on average, and 26.0 % of the labels are 1')


def test_rates_sentence_without_positives_asks_for_both_classes():
    text = str(mmcalib.measure([0.3] * 50, [0] * 50, ['rate_gap', 'ECE'], interval=0.95))
    assert '0.0 % of the labels are 1: measure on data with labels of both classes.' in text
    assert 'platt' not in text


def test_rates_sentence_of_exchanged_classes_asks_for_the_other_one():
    torch.manual_seed(0)
    probs = 0.1 * torch.rand(2_000)
    labels = (torch.rand(2_000) < probs).long()
    text = str(mmcalib.measure(1 - probs, labels, ['rate_gap', 'ECE'], interval=0.95))
    assert 'is P(y = 0), 5.' in text and '% on average, given in its place?' in text
    assert 'given in its place' not in str(
        mmcalib.measure(probs, labels, 'rate_gap', interval=0.95)
    )


@pytest.mark.parametrize('as_column', [True, False])
def test_compare_of_two_classes_has_the_ece_of_class_1_by_default(as_column):
    torch.manual_seed(0)
    probs = torch.rand(300)
    labels = (torch.rand(300) < probs).long()
    if not as_column:
        probs = torch.stack([1 - probs, probs], dim=1)
    comparison = mmcalib.compare(probs, probs, labels)
    assert next(iter(comparison)) == 'ClasswiseECE'
    assert 'ECE of P(y = 1) (%)' in str(comparison)
