"""Which predictions are drawn from a split, and how many are in memory meanwhile."""

import pytest
import torch
from tiny_models import fcn_head, scenes, segmentor

from mmcalib.posthoc.draw import LowestPriorities, draw_predictions


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


def test_every_prediction_is_as_likely():
    counts = torch.zeros(60)
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        lowest = LowestPriorities(12)
        for image, size in enumerate((10, 20, 30)):
            rows = torch.arange(60).split((10, 20, 30))[image]
            priority = torch.rand(size, generator=generator, dtype=torch.float64)
            lowest.add(priority, rows[:, None].float(), rows, image)
        logits, labels, images = lowest.result()
        assert labels.tolist() == sorted(logits[:, 0].tolist()) and len(labels) == 12
        assert torch.equal(images, torch.bucketize(labels, torch.tensor([9, 29])))
        counts[labels] += 1
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), atol=0.04, rtol=0)


def test_memory_stays_flat(monkeypatch):
    most = 0
    add = LowestPriorities.add

    def watch(self, *arguments):
        nonlocal most
        add(self, *arguments)
        most = max(most, sum(len(part[0]) for part in self.parts))

    monkeypatch.setattr(LowestPriorities, 'add', watch)
    draw_predictions(segmentor(fcn_head()), scenes(n=12), num_samples=30)
    assert most <= 60
