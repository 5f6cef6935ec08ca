"""Which maps are drawn from a split, how they are cropped, and how much is in memory meanwhile."""

import pytest
import torch
from tiny_models import classifier, fcn_head, images, scenes, segmentor

from mmcalib.posthoc import BoundaryTemperatureScaler, sampled_maps
from mmcalib.posthoc.sampled_logits import draw_predictions
from mmcalib.posthoc.sampled_maps import CONTEXT, draw_maps

WHOLE = 4 * 40 * 50


@pytest.fixture(autouse=True)
def small_sides(monkeypatch):
    monkeypatch.setattr(sampled_maps, 'SIDES', (32, 24))


def split(n=6, batch_size=2):
    return scenes(n, batch_size, size=(40, 50))


def test_maps_that_fit_are_whole():
    model = segmentor(fcn_head())
    drawn, rows = draw_maps(model, split()), draw_predictions(model, split(), num_samples=10**6)
    assert drawn.images.tolist() == list(range(6)) and drawn.num_images == 6
    assert drawn.population == rows.population == len(rows.labels)
    for number, (logits, labels) in enumerate(zip(drawn.logits, drawn.labels, strict=True)):
        assert logits.shape == (4, 40, 50) and labels.shape == (40, 50)
        valid, own = labels != drawn.ignore_index, rows.images == number
        torch.testing.assert_close(logits[:, valid].T, rows.logits[own])
        assert torch.equal(labels[valid], rows.labels[own])


@pytest.mark.parametrize(
    'limit, side, count', [(4 * WHOLE, 32, 6), (4 * 4 * 24**2, 24, 4), (10, 24, 1)]
)
def test_first_crops_then_fewer_images(limit, side, count):
    model = segmentor(fcn_head())
    whole, drawn = draw_maps(model, split()), draw_maps(model, split(), num_values=limit)
    assert [len(drawn.logits), len(drawn.labels), len(drawn.images)] == 3 * [count]
    assert drawn.population == whole.population and drawn.num_images == 6
    for logits, labels, image in zip(drawn.logits, drawn.labels, drawn.images, strict=True):
        assert logits.shape == (4, side, side) and labels.shape == (side, side)
        full, truth = whole.logits[image], whole.labels[image]
        (top, left), *others = (
            (i, j) for i in range(40 - side + 1) for j in range(50 - side + 1)
            if torch.equal(full[:, i : i + side, j : j + side], logits)
        )  # fmt: skip
        assert not others
        # The sides that were cut are context, those of the image are not.
        expected = truth[top : top + side, left : left + side].clone()
        for row in range(side):
            for column in range(side):
                if (
                    (top > 0 and row < CONTEXT)
                    or (left > 0 and column < CONTEXT)
                    or (top + side < 40 and row >= side - CONTEXT)
                    or (left + side < 50 and column >= side - CONTEXT)
                ):
                    expected[row, column] = 255
        assert torch.equal(labels, expected)


def test_a_fit_sees_the_images_that_are_kept():
    drawn = draw_maps(segmentor(fcn_head()), split())
    kept = torch.tensor([True, False, True, True, False, True])
    own = kept.nonzero()[:, 0].tolist()
    scaler = drawn.fit(BoundaryTemperatureScaler(), kept)
    assert scaler.num_predictions_ == sum(int((drawn.labels[i] != 255).sum()) for i in own)
    expected = BoundaryTemperatureScaler().fit(
        [drawn.logits[i] for i in own], [drawn.labels[i] for i in own], ignore_index=255
    )
    assert scaler.parameters == expected.parameters


def test_the_draw():
    model = segmentor(fcn_head())
    limit = 3 * 4 * 24**2
    one, other = (draw_maps(model, split(batch_size=b), num_values=limit) for b in (1, 4))
    assert torch.equal(one.images, other.images)
    for a, b in zip(one.logits, other.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    again = draw_maps(model, split(), num_values=limit, seed=1)
    assert not all(torch.equal(a, b) for a, b in zip(one.logits, again.logits, strict=True))


def test_every_image_is_as_likely():
    counts = torch.zeros(9)
    for seed in range(900):
        generator = torch.Generator().manual_seed(seed)
        crops = sampled_maps._Crops(3 * 24**2)
        for image in range(9):
            place = torch.rand(3, generator=generator).tolist()
            size = (24, 24 + image)
            crops.add(
                sampled_maps._Kept(
                    image, size, tuple(place[:2]), place[2], torch.zeros(1, *size),
                    torch.zeros(size),
                )
            )  # fmt: skip
        counts[[one.image for one in crops.maps]] += 1
        assert len(crops.maps) == 3
    torch.testing.assert_close(counts / 900, torch.full((9,), 1 / 3), atol=0.07, rtol=0)


def test_memory_stays_flat(monkeypatch):
    most = 0
    add = sampled_maps._Crops.add

    def watch(self, one):
        nonlocal most
        add(self, one)
        stored = sum(kept.logits.untyped_storage().nbytes() // 4 for kept in self.maps)
        most = max(most, stored)

    monkeypatch.setattr(sampled_maps._Crops, 'add', watch)
    draw_maps(segmentor(fcn_head()), split(12), num_values=2 * WHOLE)
    assert WHOLE < most <= 2 * WHOLE


def test_what_has_no_maps_is_said():
    head = dict(
        type='mmpretrain.LinearClsHead', num_classes=5, in_channels=8,
        loss=dict(type='mmpretrain.CrossEntropyLoss'),
    )  # fmt: skip
    with pytest.raises(TypeError, match='is a classifier'):
        draw_maps(classifier(head), images())
    loader = split()
    for batch in loader:
        for sample in batch['data_samples']:
            sample.gt_sem_seg.data[:] = 255
    with pytest.raises(ValueError, match='no valid prediction in 6 images'):
        draw_maps(segmentor(fcn_head()), loader)
