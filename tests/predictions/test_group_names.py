"""Groups of images, and the loaders whose order of images is known."""

import itertools

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from tqdm import tqdm

import mmcalib
from mmcalib.predictions.group_names import group_numbers


class BackwardsSampler(Sampler):
    """A sampler of a user's own, whose class does not tell its order."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(range(len(self.dataset) - 1, -1, -1))

    def __len__(self):
        return len(self.dataset)


class EveryOtherSampler(BackwardsSampler):
    def __iter__(self):
        return iter(range(0, len(self.dataset), 2))

    def __len__(self):
        return len(self.dataset) // 2


class ShuffledBatches(Sampler):
    """Two batches, drawn in an order of their own."""

    def __init__(self, dataset):
        half = len(dataset) // 2
        self.batches = [list(range(half)), list(range(half, len(dataset)))]
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self):
        for index in torch.randperm(2, generator=self.generator).tolist():
            yield self.batches[index]

    def __len__(self):
        return 2


# The options of loaders that read the images in another order than that of the dataset.
UNORDERED = {
    'shuffle': lambda dataset: dict(shuffle=True),
    'random subset': lambda dataset: dict(sampler=SubsetRandomSampler(range(len(dataset)))),
    'weights': lambda dataset: dict(
        sampler=WeightedRandomSampler([1.0] * len(dataset), len(dataset))
    ),
    'batch sampler': lambda dataset: dict(
        batch_sampler=BatchSampler(RandomSampler(dataset), 4, drop_last=False)
    ),
    'rows without batches': lambda dataset: dict(batch_size=None, sampler=RandomSampler(dataset)),
    'share of a process': lambda dataset: dict(
        sampler=DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    ),
    'toolboxes': lambda dataset: dict(sampler=DefaultSampler(dataset, shuffle=True)),
    'class of a user': lambda dataset: dict(sampler=BackwardsSampler(dataset)),
    'indices that are read once': lambda dataset: dict(sampler=iter(range(len(dataset)))),
    'batches that are read once': lambda dataset: dict(
        batch_sampler=iter([[index] for index in range(len(dataset))])
    ),
    'batches of indices that are read once': lambda dataset: dict(
        batch_sampler=BatchSampler(iter(range(len(dataset))), 4, drop_last=False)
    ),
    'two shuffled batches': lambda dataset: dict(batch_sampler=ShuffledBatches(dataset)),
}
ORDERED = {
    'default': lambda dataset: {},
    'batch sampler': lambda dataset: dict(
        batch_sampler=BatchSampler(SequentialSampler(dataset), 4, drop_last=False)
    ),
    'toolboxes': lambda dataset: dict(sampler=DefaultSampler(dataset, shuffle=False)),
    'part': lambda dataset: dict(sampler=EveryOtherSampler(dataset)),
}


class NotingDataset(TensorDataset):
    """Logits with noisy labels; the indices that are read are noted."""

    def __init__(self, num_images):
        logits = torch.randn(num_images, 3, generator=torch.Generator().manual_seed(0))
        labels = logits.argmax(dim=1)
        labels[::5] = (labels[::5] + 1) % 3
        super().__init__(logits, labels)
        self.indices = []

    def __getitem__(self, index):
        self.indices.append(index)
        return super().__getitem__(index)


def generator(loader):
    return (batch for batch in loader)


def tqdm_of_iterator(loader):
    return tqdm(iter(loader), disable=True)


def call_with_groups(function, loader, num_images):
    options = dict(groups=[index // 2 for index in range(num_images)])
    if function is mmcalib.evaluate:
        options['interval'] = 0.9
    function(nn.Identity(), loader, **options)


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
@pytest.mark.parametrize('case', UNORDERED)
def test_groups_loader_in_another_order_raises_before_it_reads(case, function):
    """A pass over the data may take an hour."""
    dataset = NotingDataset(30)
    loader = DataLoader(dataset, **UNORDERED[case](dataset))
    random_state = torch.get_rng_state()
    with pytest.raises(ValueError, match='shuffle=False'):
        call_with_groups(function, loader, 30)
    assert not dataset.indices
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
@pytest.mark.parametrize('case', ORDERED)
def test_groups_loader_in_order_is_read(case, function):
    dataset = NotingDataset(60)
    loader = DataLoader(dataset, **ORDERED[case](dataset))
    step = 2 if case == 'part' else 1
    call_with_groups(function, loader, 60 // step)
    assert dataset.indices == list(range(0, 60, step))


class Prefetcher:
    """A wrapper of a loader, as many repositories have one."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


@pytest.mark.parametrize(
    'wrap', [Prefetcher, lambda loader: tqdm(Prefetcher(loader), disable=True)]
)
@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_groups_wrapped_loader_is_judged_by_its_sampler(function, wrap):
    dataset = NotingDataset(60)
    with pytest.raises(ValueError, match='shuffle=False'):
        call_with_groups(function, wrap(DataLoader(dataset, shuffle=True)), 60)
    assert not dataset.indices
    call_with_groups(function, wrap(DataLoader(dataset)), 60)


@pytest.mark.parametrize(
    'wrap', [iter, tqdm_of_iterator, lambda loader: itertools.islice(loader, 99), generator]
)
@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_groups_iterator_raises_and_its_list_is_read(function, wrap):
    loader = DataLoader(NotingDataset(60), batch_size=10)
    with pytest.raises(ValueError, match='give the loader itself, or a list of its batches'):
        call_with_groups(function, wrap(loader), 60)
    call_with_groups(function, list(wrap(loader)), 60)


class Stream(IterableDataset):
    def __iter__(self):
        return zip(torch.randn(8, 3), range(8), strict=True)


@pytest.mark.parametrize(
    ('dataset', 'options', 'remedy'),
    [
        (NotingDataset(30), dict(in_order=False, num_workers=2), 'in_order=True'),
        (Stream(), dict(num_workers=2), 'num_workers=1'),
    ],
)
@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_groups_workers_in_no_known_order_raise(function, dataset, options, remedy):
    loader = DataLoader(dataset, **options)
    with pytest.raises(ValueError, match=remedy):
        call_with_groups(function, loader, 30)


def test_groups_one_worker_is_in_order():
    loader = DataLoader(NotingDataset(30), in_order=False, num_workers=1)
    call_with_groups(mmcalib.evaluate, loader, 30)


def test_group_numbers_names_are_numbered_in_order():
    assert group_numbers(['b', 'a', 'b'], 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize('as_names', [list, np.array, [str(index // 3) for index in range(9)]])
def test_group_numbers_tensors_of_one_number_are_that_number(as_names):
    groups = torch.arange(9) // 3
    names = as_names if isinstance(as_names, list) else as_names(groups)
    assert group_numbers(names, 9).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ('groups', 'message'),
    [
        ([1.0, float('nan'), np.nan], '2 of 3 groups are NaN'),
        (['a', None, None], '2 of 3 groups are None'),
        (['a', '', 'b'], '1 of 3 groups are empty'),
    ],
)
def test_group_numbers_missing_name_raises(groups, message):
    with pytest.raises(ValueError, match=message):
        group_numbers(groups, 3)
