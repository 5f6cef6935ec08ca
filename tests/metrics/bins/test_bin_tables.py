import pickle

import pytest
import torch

from mmcalib.metrics.bins import bin_tables as module
from mmcalib.metrics.bins import narrow_bins as narrow_module
from mmcalib.metrics.bins.bin_tables import equal_mass_bins, equal_width_bins
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins


def draw(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    conf = 1 - torch.rand(n, generator=generator) ** 6
    return conf, torch.rand(n, generator=generator) < conf


def test_bins_are_closed_above():
    conf = torch.tensor([0.0, 0.2, 0.2000001, 1.0], dtype=torch.float64)
    table = equal_width_bins(conf, torch.ones(4, dtype=bool), 5)
    assert table[0].tolist() == [2, 1, 0, 0, 1]


def test_no_mass_is_lost_to_equal_mass_bins():
    conf, correct = draw(1001)
    narrow = ConfidenceBins().add(conf, correct).table()
    table = equal_mass_bins(narrow, 15)
    torch.testing.assert_close(table[0], torch.full((15,), 1001 / 15, dtype=torch.float64))
    torch.testing.assert_close(table.sum(dim=1), narrow.sum(dim=1))


@pytest.mark.parametrize('limit', [100, 600, 10_000])
@pytest.mark.parametrize('cuts', [[], [1], [300, 300], [999, 1, 0, 500]])
def test_any_split_merges_to_the_same_bins(limit, cuts, monkeypatch):
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', limit)
    conf, correct = draw(2000)
    whole = ConfidenceBins().add(conf, correct)
    sizes = [*cuts, 2000 - sum(cuts)]
    parts = [
        ConfidenceBins().add(c, k)
        for c, k in zip(conf.split(sizes), correct.split(sizes), strict=True)
    ]
    for order in (parts, parts[::-1]):
        merged = ConfidenceBins()
        for part in order:
            merged.merge(pickle.loads(pickle.dumps(part)))
        assert merged.count == 2000 and merged.exact == whole.exact == (limit >= 2000)
        torch.testing.assert_close(merged.table(), whole.table(), rtol=0, atol=1e-9)


def test_fine_bins_ascend_and_span_what_they_hold(monkeypatch):
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', 0)
    conf = torch.cat([draw(20_000)[0], torch.tensor([0.0, 1.0, 0.5, 1 - 2**-24])]).double()
    narrow = ConfidenceBins().add(conf, torch.ones_like(conf, dtype=bool))
    count, _, total = narrow.table()[:, narrow.table()[0] > 0]
    mean, spread = total / count, narrow.spread()[narrow.table()[0] > 0]
    assert (mean.diff() > 0).all() and mean[0] == 0 and mean[-1] == 1
    assert count.sum() == len(conf)
    assert ((spread >= 0) & (spread <= (1 - mean) / 2 ** (narrow_module.NARROW_BITS - 1))).all()
    assert (spread[count == 1] == 0).all() and (spread > 0).any()


def test_memory_is_constant_above_the_limit():
    narrow = ConfidenceBins()
    for seed in range(3):
        narrow.add(*draw(400_000, seed))
    assert not narrow.exact and narrow.count == 1_200_000
    assert narrow.table().shape == (
        3,
        narrow_module.num_narrow_bins(narrow_module.NARROW_BITS),
    )
    assert narrow.table()[0].sum() == 1_200_000


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('num_bins', [1, 2, 15, 400, 10_000])
def test_many_predictions_are_binned_like_few(num_bins, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    edges = torch.arange(num_bins + 1, dtype=torch.float64) / num_bins
    edges = edges[-100:].to(dtype)
    conf = torch.cat([
        edges, torch.nextafter(edges, edges + 1), torch.nextafter(edges, edges - 1),
        torch.rand(5000, generator=generator, dtype=dtype), torch.ones(50, dtype=dtype),
    ]).clamp(0, 1)  # fmt: skip
    correct = torch.rand(len(conf), generator=generator) < 0.7
    for sure in (conf, conf[conf < 1 - 1.0 / num_bins]):  # the second without any in the last bin
        right = correct[: len(sure)]
        monkeypatch.setattr(module, 'MANY', 0)
        found = equal_width_bins(sure, right, num_bins)
        monkeypatch.setattr(module, 'MANY', len(conf) + 1)
        expected = equal_width_bins(sure, right, num_bins)
        assert found[:2].equal(expected[:2])
        torch.testing.assert_close(found[2], expected[2], rtol=0, atol=1e-9)
        assert (found[2][found[0] == 0] == 0).all()
