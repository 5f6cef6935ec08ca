"""Thresholds of classes and sets of classes: against loops, and how often their guarantees hold."""

import math

import numpy as np
import pytest
import references
import torch

from mmcalib.metrics import PredictionSets, class_thresholds, recall_over_all, recall_thresholds
from mmcalib.metrics.bins.class_image_bins import ClassImageBins
from mmcalib.metrics.bins.image_bins import narrow_bin_thresholds

CLASSES = ['a', 'b', 'c']


def draw(images, pixels=20, seed=0, sharpness=3.0):
    """Probabilities ``(images, pixels, 3)`` and labels drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(images, pixels, 3, generator=generator)
    logits += torch.randn(images, 1, 3, generator=generator)
    probs = logits.double().softmax(dim=2)
    labels = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(images, pixels)
    return probs, labels


def tables(probs, labels):
    bins = ClassImageBins()
    for place, (p, y) in enumerate(zip(probs, labels, strict=True)):
        conf, predicted = p.max(dim=1)
        own = p.gather(1, y[:, None])[:, 0]
        bins.add(torch.tensor(place), 3, predicted=predicted, label=y, conf=conf, own=own)
    return bins.table()


def test_the_table_counts_what_loops_count():
    probs, labels = draw(4, 9)
    keys, bins = tables(probs, labels)
    thresholds = narrow_bin_thresholds().tolist()
    expected = {}
    for place in range(4):
        for p, y in zip(probs[place].tolist(), labels[place].tolist(), strict=True):
            k = p.index(max(p))
            for row, klass, value in ((0, k, max(p)), (2, y, 1 - p[y]), (1, k, max(p))):
                if row == 1 and k != y:
                    continue
                place_of = sum(value > t for t in thresholds) - 1
                counts = expected.setdefault((place, klass), np.zeros((3, len(thresholds))))
                counts[row, place_of] += 1
    assert [tuple(key) for key in keys.tolist()] == sorted(expected)
    for key, counts in zip(keys.tolist(), bins, strict=True):
        np.testing.assert_array_equal(counts, expected[tuple(key)])


def test_images_of_one_prediction_are_counted_together_as_one_by_one():
    probs, labels = draw(12, 1)
    one_by_one = tables(probs, labels)
    conf, predicted = probs[:, 0].max(dim=1)
    own = probs[:, 0].gather(1, labels)[:, 0]
    parts = [ClassImageBins(), ClassImageBins()]
    for number, rows in enumerate((torch.arange(5, 12), torch.arange(5))):
        values = dict(predicted=predicted, label=labels[:, 0], conf=conf, own=own)
        parts[number].add(rows, 3, **{name: value[rows] for name, value in values.items()})
    for a, b in zip(one_by_one, parts[0].merge(parts[1]).table(), strict=True):
        assert torch.equal(a, b)


def test_precision_is_the_loops_of_each_class_at_a_third_of_the_level():
    probs, labels = draw(200, sharpness=4.0)
    found = class_thresholds(*tables(probs, labels), CLASSES, 0.8)
    for k, threshold in enumerate(found):
        images = []
        for p, y in zip(probs.tolist(), labels.tolist(), strict=True):
            own = [(max(q), t == k) for q, t in zip(p, y, strict=True) if q.index(max(q)) == k]
            if own:
                images.append(tuple(zip(*own, strict=True)))
        level = 1 - 0.05 / 3
        expected = references.threshold_at_risk(
            images, narrow_bin_thresholds().tolist()[1:], 0.2, level
        )
        assert expected is not None and threshold.bound.threshold == expected
        assert (threshold.name, threshold.reason) == (CLASSES[k], '')
        assert threshold.num_images == len(images)


def test_a_class_without_examples_has_no_threshold():
    (*others, last) = class_thresholds(*tables(*draw(300, sharpness=4.0)), [*CLASSES, 'd'], 0.8)
    assert all(threshold.bound for threshold in others)
    assert (last.bound, last.num_images) == (None, 0)
    assert last.reason == 'the validation never predicts it'


def test_what_cannot_be_proven_says_why():
    found = class_thresholds(*tables(*draw(20)), CLASSES, 0.99)
    assert all(threshold.bound is None for threshold in found)
    assert found[0].reason == (
        'its 20 validation images prove no threshold with a precision of 99 %: validate on more '
        'images (about 568 if none has an error), or accept a lower precision'
    )
    assert [t.num_images for t in class_thresholds(*tables(*draw(0)), CLASSES, 0.9)] == [0, 0, 0]


@pytest.mark.parametrize('recall', [0.5, 0.8, 0.95])
def test_recall_is_that_of_loops(recall):
    probs, labels = draw(60)
    table = tables(probs, labels)
    ends = sorted({min(1 - t, 1.0) for t in narrow_bin_thresholds().tolist()} | {0.0}, reverse=True)
    for k, found in enumerate(recall_thresholds(*table, CLASSES, recall)):
        images = [
            [p[k].item() for p, label in zip(ps, ys, strict=True) if label == k]
            for ps, ys in zip(probs, labels, strict=True)
        ]
        images = [values for values in images if values]
        for end in ends:
            missed = [sum(p < end for p in values) / len(values) for values in images]
            if (sum(missed) + 1) / (len(images) + 1) <= 1 - recall:
                break
        assert found.threshold == end and found.num_images == len(images)
        assert found.found_recall == pytest.approx(1 - sum(missed) / len(images))
    own = probs.gather(2, labels[..., None])[..., 0]
    found = recall_over_all(*table, recall)
    marked = (own >= found.threshold).double().mean(dim=1).mean().item()
    assert found.found_recall == pytest.approx(marked) and marked > recall


def test_a_recall_that_so_few_images_cannot_guarantee():
    probs, labels = draw(8)
    labels[:] = 0
    a, b, _ = recall_thresholds(*tables(probs, labels), CLASSES, 0.9)
    assert a == ('its 8 validation images guarantee a recall of at most 88.89 %: 90 % requires 9')
    assert b == 'the validation has no pixel of this class'
    (nine, *_) = recall_thresholds(*tables(*draw(9)), CLASSES, 0.9)
    assert (nine.num_images, nine.found_recall) == (9, 1)


@pytest.mark.parametrize('value', [0, 1, 90, -0.5])
def test_shares_are_no_percentages(value):
    table = tables(*draw(5))
    with pytest.raises(ValueError, match='precision must be'):
        class_thresholds(*table, CLASSES, value)
    with pytest.raises(ValueError, match='probability must be'):
        class_thresholds(*table, CLASSES, 0.9, probability=value)
    with pytest.raises(ValueError, match='recall must be'):
        recall_over_all(*table, value)
    with pytest.raises(ValueError, match='coverage must be'):
        PredictionSets(np.ones((3, 1)), np.zeros(3, int), value)


def test_precision_of_all_classes_holds_in_19_of_20_validations():
    probs, labels = draw(1500, pixels=6, seed=5)
    keys, bins = tables(probs, labels)
    generator, broken, sets = torch.Generator().manual_seed(0), 0, 60
    conf, predicted = probs.max(dim=2)
    for _ in range(sets):
        drawn = torch.randperm(1500, generator=generator)[:200]
        rows = torch.isin(keys[:, 0], drawn)
        for k, found in enumerate(class_thresholds(keys[rows], bins[rows], CLASSES, 0.75)):
            assert found.bound is not None
            of_class = predicted == k
            has = of_class.any(dim=1)
            kept = of_class & (conf > found.bound.threshold)
            wrong = kept & (labels != k)
            size = of_class.sum(dim=1)[has]
            shares = [(x.sum(dim=1)[has] / size).mean() for x in (wrong, kept)]
            if shares[0] / shares[1] > 0.25:
                broken += 1
                break
    assert broken <= 0.05 * sets + 1


@pytest.mark.parametrize('method', ['aps', 'raps'])
def test_sets_are_those_of_loops(method):
    probs, labels = (x.flatten(0, 1) for x in draw(40, 1))
    options = dict(method=method, penalty=0.1, free_ranks=1, randomized=False)
    sets = PredictionSets(probs, labels, 0.8, **options)

    def score(row, k):
        first = sorted(range(3), key=lambda j: -row[j])
        rank = first.index(k) + 1
        more = sum(row[j] for j in first[: rank - 1])
        return more + row[k] + (0.1 * max(0, rank - 1) if method == 'raps' else 0)

    scores = sorted(score(row, k) for row, k in zip(probs.tolist(), labels.tolist(), strict=True))
    assert sets.threshold == pytest.approx(scores[math.ceil(41 * 0.8) - 1])
    new = draw(30, 1, seed=1)[0][:, 0]
    expected = [[score(row, k) <= sets.threshold for k in range(3)] for row in new.tolist()]
    np.testing.assert_array_equal(sets(new), expected)


@pytest.mark.parametrize('method', ['aps', 'raps'])
def test_randomized_sets_cover_what_was_asked_and_no_more(method):
    probs, labels = (x.flatten(0, 1) for x in draw(6000, 1, seed=3))
    covered, sizes = [], []
    for seed in range(200):
        order = torch.randperm(6000, generator=torch.Generator().manual_seed(seed))
        fit, new = order[:100], order[100:1100]
        sets = PredictionSets(probs[fit], labels[fit], 0.8, method=method, seed=seed)
        found = sets(probs[new])
        covered.append(found[np.arange(1000), labels[new]].mean())
        sizes.append(found.sum(axis=1).mean())
    assert 0.795 < np.mean(covered) < 0.815
    assert np.mean(sizes) < 2


def test_a_coverage_that_so_few_cannot_guarantee():
    probs, labels = (x.flatten(0, 1) for x in draw(8, 1))
    text = r'8 predictions guarantee a coverage of at most 88\.89 %, got 90 %: .* on at least 9'
    with pytest.raises(ValueError, match=text):
        PredictionSets(probs, labels, 0.9)
    probs, labels = (x.flatten(0, 1) for x in draw(9, 1))
    PredictionSets(probs, labels, 0.9)
    with pytest.raises(ValueError, match=r"method must be one of .*, got 'lac'"):
        PredictionSets(probs, labels, 0.9, method='lac')
