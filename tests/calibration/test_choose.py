"""The choice of a method where the truth is known, and which images are independent."""

import numpy as np
import pytest
import torch
from drawn import draw_of_arrays
from mmengine.registry import DATASETS
from overconfident import draw_labels

from mmcalib.calibration.choose import NONE, choose_method, methods_for
from mmcalib.calibration.folds import assign_folds, fit_folds
from mmcalib.calibration.groups import independent_groups, neighbours_alike
from mmcalib.commands.calibrate.groups import groups_of_images
from mmcalib.posthoc import SCALERS

SHIFT = np.array([0.2, 1.5, 0.7, 1.0]), np.array([2.0, -1.0, 0.0, 0.0])


def predictions(change=lambda z: z, *, n=6000, num_classes=4, of_image=1):
    """Logits whose truth is that of `change`, applied to them."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, num_classes))
    labels = draw_labels(change(logits), rng)
    return draw_of_arrays(logits, labels, torch.arange(n) // of_image)


def choose(drawn, pixels=False):
    """The method, and of each that was compared what was measured."""
    folds = torch.arange(drawn.num_images) % 5
    methods = methods_for(drawn.logits.shape[1], num_groups=drawn.num_images, pixels=pixels)
    chosen, candidates = choose_method(drawn, drawn.rows.images, folds, methods, pixels=pixels)
    assert [c['method'] for c in candidates] == [NONE, *methods]
    return chosen, {c['method']: c for c in candidates}


@pytest.mark.parametrize(
    ('change', 'num_classes', 'expected'),
    [
        (lambda z: z, 4, [NONE]),
        (lambda z: z / 2.5, 4, ['temperature']),
        (lambda z: z * SHIFT[0] + SHIFT[1], 4, ['vector']),
        (lambda z: 0.3 * z - 1, 1, ['platt', 'vector']),
    ],
)
def test_the_truth_is_chosen(change, num_classes, expected):
    chosen, found = choose(predictions(change, num_classes=num_classes))
    assert chosen in expected and 'vector' in found
    assert found['temperature']['accuracy'] == found[NONE]['accuracy']
    if chosen == 'temperature':
        assert found[NONE]['nll'] > found['temperature']['nll'] + 0.1


def test_what_is_measured_is_that_of_a_loop():
    drawn = predictions(lambda z: z / 2, n=300, of_image=10)
    _, found = choose(drawn, pixels=True)
    none = found[NONE]
    assert found['temperature']['above_best'] < none['above_best']
    # By hand for none against the best, with the folds refitted.
    best = min((c for c in found.values() if not c['problem']), key=lambda c: c['nll'])['method']
    folds = fit_folds(SCALERS[best](), drawn, drawn.rows.images, torch.arange(30) % 5)
    more = []
    for z, y, image in zip(drawn.logits, drawn.labels, drawn.rows.images, strict=True):
        scaled = folds[int(image) % 5].transform(z[None])[0]
        more.append((z.logsumexp(0) - z[y] - scaled.logsumexp(0) + scaled[y]).item())
    mean = sum(more) / len(more)
    sums = [sum(m - mean for m in more[10 * i : 10 * i + 10]) for i in range(30)]
    assert none['above_best'] == pytest.approx(mean)
    assert none['standard_error'] == pytest.approx(sum(s**2 for s in sums) ** 0.5 / 300)
    ious, predicted = [], drawn.logits.argmax(1)
    for k in range(4):
        a, b = predicted == k, drawn.labels == k
        ious.append(((a & b).sum() / (a | b).sum()).item())
    assert none['miou'] == pytest.approx(100 * sum(ious) / 4)


def test_what_cannot_be_fitted_is_listed():
    drawn = predictions(n=50)
    drawn.labels[:] = 2
    chosen, found = choose(drawn)
    assert 'all labels have class 2' in found['vector']['problem']
    assert chosen not in ('vector', 'matrix')


class Images(list):
    """A data set of such infos."""

    def get_data_info(self, index):
        return self[index]


def test_which_images_belong_together():
    groups = groups_of_images(Images({'group': number % 7} for number in range(40)))
    assert groups.tolist() == [number % 7 for number in range(40)]
    # Each image once, but not the images of a list that stands for several.
    digits = dict(type='Digits', split='test', pipeline=[], indices=12)
    repeated = DATASETS.build(dict(type='RepeatDataset', dataset=digits, times=2))
    first, second = groups_of_images(repeated).split(12)
    assert torch.equal(first, second) and len(first.unique()) == 12
    both = DATASETS.build(dict(type='ConcatDataset', datasets=[digits, digits]))
    assert len(groups_of_images(both).unique()) == 12
    paths = [f'data/{city}/{city}_{number}.png' for city in ('Ulm', 'Bonn') for number in range(3)]
    images = Images({'img_path': path} for path in paths)
    for pattern in ('Ulm|Bonn', r'/(\w+)/', r'(\w+)_\d'):
        assert groups_of_images(images, pattern).tolist() == [0, 0, 0, 1, 1, 1]
    # Names of two kinds are never of one group.
    assert groups_of_images(images, r'Ulm_(\d)|Bonn_(\d)').tolist() == list(range(6))
    with pytest.raises(ValueError, match='--groups Ulm finds nothing in data'):
        groups_of_images(images, 'Ulm')


def test_folds_are_of_nearly_equal_sizes():
    sizes = assign_folds(42, seed=0).bincount()
    assert len(sizes) == 5 and sizes.max() - sizes.min() <= 1
    assert assign_folds(3, seed=0).sort().values.tolist() == [0, 1, 2]


def frames(content, error, *, pixels=50, seed=0):
    """Pixels of images whose logits have an error, `(n, K)`, beside what the images show."""
    rng = np.random.default_rng(seed)
    images = np.arange(len(content)).repeat(pixels)
    truth = content[images] + rng.normal(size=(len(images), content.shape[1]))
    return draw_of_arrays(truth + error[images], draw_labels(truth, rng), images)


class InOrder:
    """A source whose images come in the order of the data."""

    in_order = True

    def image_numbers(self, rows):
        return None


def test_frames_of_a_video_are_found_and_runs_of_them_are_the_groups():
    rng, images = np.random.default_rng(0), torch.arange(60)
    for seed in range(10):
        # Walks from frame to frame.
        walks = rng.normal(size=(2, 60, 4)).cumsum(axis=1)
        content, error = (walk / walk.std() for walk in walks)
        video, order = frames(content, error, seed=seed), rng.permutation(60)
        groups = independent_groups(video, InOrder(), None)
        assert groups.of_image.tolist() == [n // 12 for n in range(60)]
        assert groups.are_runs and groups.count == 5
        shuffled = frames(content[order], error[order], seed=seed)
        groups = independent_groups(shuffled, InOrder(), None)
        assert groups.of_image.tolist() == images.tolist() and not groups.are_runs


def test_images_in_the_order_of_their_classes_are_independent():
    """Each class has an error of its own, which is no sign of a video."""
    rng, order = np.random.default_rng(0), np.arange(200) * 4 // 200
    for seed in range(10):
        drawn = frames(rng.normal(size=(200, 4)), 2 * np.eye(4)[order], pixels=1, seed=seed)
        drawn.labels[:] = torch.as_tensor(order)
        assert not neighbours_alike(drawn, drawn.rows.images)
        content = rng.normal(size=(200, 4))
        content = content[content.argmax(axis=1).argsort(kind='stable')]
        drawn = frames(content, rng.normal(size=(200, 4)), seed=seed)
        assert not neighbours_alike(drawn, drawn.rows.images)
