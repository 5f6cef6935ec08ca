"""Which predictions are drawn from a split, and how many are in memory meanwhile."""

import pytest
import torch
from tiny_models import fcn_head, scenes, segmentor

from mmcalib.posthoc import draw
from mmcalib.posthoc.model_logits import draw_predictions


@pytest.mark.parametrize('batch_size', [1, 4])
def test_the_draw(batch_size):
    model = segmentor(fcn_head())
    one = draw_predictions(model, scenes(), num_samples=50)
    assert len(one.labels) == 50 < one.population
    other = draw_predictions(model, scenes(batch_size=batch_size), num_samples=50)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.images, other.images)
    assert one.images.tolist() == sorted(one.images.tolist())
    again = draw_predictions(model, scenes(), num_samples=50, seed=1)
    assert not torch.equal(one.logits, again.logits)


def test_each_image_has_a_draw_of_its_own():
    rows = torch.arange(100.0)[:, None].expand(-1, 2)
    parts = [draw.LogitRows(rows, *[rows[:, 0].long()] * 2, torch.full((100,), n)) for n in (0, 1)]
    found = draw.draw(parts, num_samples=60)
    first, second = (found.logits[found.images == n, 0].tolist() for n in (0, 1))
    assert first != second and 15 < len(first) < 45


def test_every_prediction_is_as_likely():
    counts = torch.zeros(60)
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        sizes = (10, 20, 30)
        priorities = [torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes]
        rows = torch.arange(60).split(sizes)
        first = draw.lowest(list(zip(priorities[:2], rows[:2], strict=True)), 12)
        priority, labels = draw.lowest([first, (priorities[2], rows[2])], 12)
        assert labels.tolist() == sorted(labels.tolist()) and len(labels) == 12
        assert priority.max() <= torch.cat(priorities).sort().values[11]
        counts[labels] += 1
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), atol=0.04, rtol=0)


def test_memory_stays_flat(monkeypatch):
    most, lowest = 0, draw.lowest

    def watch(parts, limit):
        nonlocal most
        most = max(most, sum(len(part[0]) for part in parts))
        return lowest(parts, limit)

    monkeypatch.setattr(draw, 'lowest', watch)
    loader = scenes(n=12)
    size = draw_predictions(segmentor(fcn_head()), loader, num_samples=30).population / 12
    assert 60 < most <= 60 + 2 * size
