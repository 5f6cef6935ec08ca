"""Thresholds of classes: against loops, and how often their guarantees hold."""

import numpy as np
import pytest
import references
import torch

from mmcalib.metrics import class_thresholds
from mmcalib.metrics.counts import Counts, narrow_bin_thresholds, of_probabilities
from mmcalib.metrics.statistics import of_images

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
    images = []
    for p, y in zip(probs, labels, strict=True):
        found = of_probabilities(p, y)
        found = found._replace(left_out=found.conf[:0])
        images.append(Counts.of(found, num_classes=3))
    found = of_images(images)
    return found['image_class'], found['image_class_bins']


def test_the_table_counts_what_loops_count():
    probs, labels = draw(4, 9)
    keys, bins = tables(probs, labels)
    thresholds = narrow_bin_thresholds().tolist()
    expected = {}
    for place in range(4):
        for p, y in zip(probs[place].tolist(), labels[place].tolist(), strict=True):
            k = p.index(max(p))
            for row, klass, value in ((0, k, max(p)), (1, k, max(p))):
                if row == 1 and k != y:
                    continue
                place_of = sum(value > t for t in thresholds) - 1
                counts = expected.setdefault((place, klass), np.zeros((2, len(thresholds))))
                counts[row, place_of] += 1
    assert [tuple(key) for key in keys.tolist()] == sorted(expected)
    for key, counts in zip(keys.tolist(), bins, strict=True):
        np.testing.assert_array_equal(counts, expected[tuple(key)])


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


@pytest.mark.parametrize('value', [0, 1, 90, -0.5])
def test_shares_are_no_percentages(value):
    table = tables(*draw(5))
    with pytest.raises(ValueError, match='precision must be'):
        class_thresholds(*table, CLASSES, value)
    with pytest.raises(ValueError, match='probability must be'):
        class_thresholds(*table, CLASSES, 0.9, probability=value)


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
