"""Which samples of a rank are a sampler's padding, on any number of simulated ranks."""

import pytest
import torch

from mmcalib.metrics import sampler_padding as module
from mmcalib.metrics.sampler_padding import SamplerPadding


def counted(shares, size, monkeypatch, batch=None):
    """The samples that all ranks let through, and their places."""
    counts = [torch.tensor(len(share)) for share in shares]
    monkeypatch.setattr(module, 'all_gather', lambda count: counts)
    found = []
    for rank, share in enumerate(shares):
        monkeypatch.setattr(module, 'get_dist_info', lambda rank=rank: (rank, len(shares)))
        padding = SamplerPadding()
        for start in range(0, len(share), batch or 1):
            if batch is None:
                found += padding.let_in(share[start])
            else:
                samples = share[start : start + batch]
                waited, places = padding.let_in_batch(len(samples), samples[-1])
                found += [*waited, *zip(places, samples, strict=False)]
        found += padding.close(size)
    return sorted(found)


@pytest.mark.parametrize('size', range(9))
@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
@pytest.mark.parametrize('padded', [True, False])
@pytest.mark.parametrize('batch', [None, 1, 3])
def test_every_sample_counts_once_in_its_place(size, world_size, padded, batch, monkeypatch):
    samples = list(range(size))
    if padded and size:  # as mmengine's DefaultSampler does
        samples = (samples * world_size)[: -(-size // world_size) * world_size]
    shares = [samples[rank::world_size] for rank in range(world_size)]
    assert counted(shares, size, monkeypatch, batch) == [(n, n) for n in range(size)]


def test_samples_that_are_all_on_one_rank_count_once(monkeypatch):
    assert [s for _, s in counted([['a', 'b', 'c'], []], 3, monkeypatch)] == ['a', 'b', 'c']


@pytest.mark.parametrize('shares', [['abc'], ['abcd', 'ef'], ['abc', 'def', 'ghi']])
def test_more_than_a_samplers_padding_is_refused(shares, monkeypatch):
    size = sum(map(len, shares)) - len(shares)
    with pytest.raises(ValueError, match=rf'processes, and the data set has {size}\. .*reset\(\)'):
        counted(shares, size, monkeypatch)


def test_padding_that_is_not_dealt_out_in_turn_is_refused(monkeypatch):
    with pytest.raises(ValueError, match='not distributed in turn'):
        counted(['abcd', 'e', 'f'], 4, monkeypatch)
