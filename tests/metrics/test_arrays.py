"""Metrics of arrays: any kind of array, maps, one class, and the functions beside `measure`."""

import re

import numpy as np
import pytest
import references
import torch

import mmcalib
from mmcalib import metrics
from mmcalib.metrics import measure, outcomes
from mmcalib.metrics.definitions import METRICS
from mmcalib.posthoc import TemperatureScaler

NAMES = tuple(METRICS)


def draw(n=60, k=4, seed=0):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(k, 0.5), n)
    return probs, generator.integers(0, k, n)


@pytest.mark.parametrize(
    'convert',
    [
        torch.from_numpy,
        lambda x: x.tolist(),
        lambda x: [torch.from_numpy(np.asarray(row)) for row in x],
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1][::-1],
        lambda x: x.astype(x.dtype.newbyteorder('>')),
        lambda x: x.astype('uint16') if x.dtype.kind == 'i' else x,
    ],
)
def test_measure_any_kind_of_array_same(convert):
    probs, labels = draw()
    expected = measure(probs, labels, NAMES)
    actual = measure(convert(probs), convert(labels), NAMES)
    assert actual == pytest.approx(expected, abs=1e-5)


def test_measure_probability_of_class_1_equals_both_columns():
    probs, labels = draw(k=2)
    expected = measure(probs, labels, NAMES)
    assert measure(probs[:, 1], labels, NAMES) == pytest.approx(expected, abs=1e-6)
    assert measure(probs[:, 1:], labels, NAMES) == pytest.approx(expected, abs=1e-6)


def test_measure_maps_in_pieces_equals_rows(monkeypatch):
    monkeypatch.setattr(outcomes, 'PIECE_BYTES', 1)
    probs, labels = draw(k=2)
    maps = np.moveaxis(probs.reshape(3, 4, 5, 2), -1, 1)
    label_maps = labels.reshape(3, 4, 5)
    ignored = np.full_like(label_maps, 255)
    actual = measure(
        np.concatenate([maps, maps], axis=-1),
        np.concatenate([label_maps, ignored], axis=-1),
        NAMES,
        ignore_index=255,
    )
    assert actual == pytest.approx(measure(probs, labels, NAMES), abs=1e-9)


def test_measure_one_name_equals_named_function():
    probs, labels = draw()
    values = measure(probs, labels)
    assert list(values) == ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy']
    actual = metrics.expected_calibration_error(probs, labels, num_bins=7)
    assert actual == measure(probs, labels, 'ECE', num_bins=7)
    correct = probs.argmax(1) == labels
    actual = metrics.adaptive_calibration_error(conf=probs.max(1), correct=correct)
    assert actual == values['AECE']


@pytest.mark.parametrize('threshold', [None, 0.0123, 0.305])
def test_classwise_adaptive_error_any_threshold_equals_loop(threshold):
    probs, labels = draw()
    probs = np.round(probs, 2)
    probs[:, 0] = 1 - probs[:, 1:].sum(1)
    probs = probs.clip(0, 1)
    actual = metrics.classwise_adaptive_calibration_error(probs, labels, threshold=threshold)
    expected = references.classwise(
        references.adaptive_calibration_error,
        probs.astype('float32').tolist(),
        labels.tolist(),
        threshold=-1 if threshold is None else threshold,
    )
    assert actual == pytest.approx(expected, abs=1e-3)


def test_classwise_adaptive_error_nothing_above_threshold_is_nan():
    probs, labels = draw()
    assert np.isnan(metrics.classwise_adaptive_calibration_error(probs, labels, threshold=1))


def shares_of_votes():
    """Return logits, and the shares of votes on each image, most of which agree."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(300, 4)
    noise = 2 * torch.randn(logits.shape)
    probs = (logits + noise).softmax(dim=1)
    votes = probs.multinomial(5, replacement=True)
    return logits, torch.nn.functional.one_hot(votes, 4).float().mean(dim=1)


def rows_of_votes(message, shares):
    """Return the rows, labels and groups that an error names, by its own code."""
    code = re.search(
        r'votes = (.+) of V voters and i = (.+), these are the rows (.+) with labels (.+), and '
        r'groups=(.+)$',
        message,
    )
    scope = {'shares': shares, 'V': 5, 'torch': torch}
    scope['votes'] = eval(code[1], scope)
    scope['i'] = eval(code[2], scope)
    return [eval(code[number], scope) for number in (3, 4, 5)]


def doors_of_shares(logits, shares):
    """Return calls of every door with shares in place of labels."""
    probs = logits.softmax(dim=1)
    return {
        'measure': lambda: measure(probs, shares, ['ECE']),
        'measure arrays': lambda: measure(probs.numpy(), shares.double().numpy(), ['ECE']),
        'compare': lambda: mmcalib.compare(probs, probs, shares, ['ECE']),
        'stream': lambda: metrics.StreamingMetrics(['ECE']).update(logits, shares),
        'evaluate': lambda: mmcalib.evaluate(torch.nn.Identity(), [(logits, shares)], ['ECE']),
        'calibrate': lambda: mmcalib.calibrate(torch.nn.Linear(4, 4), [(logits, shares)]),
        'fit': lambda: TemperatureScaler().fit(logits, shares),
    }


def test_shares_of_votes_remedy_gives_the_mean_over_votes():
    logits, shares = shares_of_votes()
    probs = logits.softmax(dim=1)
    messages = set()
    for door in doors_of_shares(logits, shares).values():
        with pytest.raises(ValueError, match='are shares of 4 classes, as of votes') as error:
            door()
        messages.add(str(error.value).removeprefix('a: '))
    (message,) = messages
    rows, labels, groups = rows_of_votes(message, shares)
    actual = measure(probs[rows], labels, ['accuracy', 'NLL'], interval=0.95, groups=groups)

    # The expectations are weighted by the shares, without votes.
    accuracy = []
    nll = []
    for prob, share in zip(probs.double().tolist(), shares.double().tolist(), strict=True):
        accuracy.append(share[int(np.argmax(prob))])
        nll.append(-sum(share[k] * np.log(prob[k]) for k in range(4)))
    assert actual['accuracy'] == pytest.approx(100 * np.mean(accuracy), abs=1e-4)
    assert actual['NLL'] == pytest.approx(np.mean(nll), rel=1e-5)
    standard_error = np.std(nll, ddof=1) / np.sqrt(len(nll))
    width = actual['NLL_high'] - actual['NLL_low']
    assert width == pytest.approx(2 * 1.96 * standard_error, rel=0.1)
    by_vote = measure(probs[rows], labels, ['NLL'], interval=0.95)
    assert by_vote['NLL_high'] - by_vote['NLL_low'] < 0.8 * width
