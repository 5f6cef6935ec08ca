"""The registered metrics, on one process and on several gloo ranks."""

import math
import pickle

import pytest
import torch
import torch.multiprocessing as mp
from metrics.samples import classified, flatten, segmented
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS
from references import adaptive_calibration_error, expected_calibration_error

from mmcalib.metrics import AECE, ECE, CalibrationMetric
from mmcalib.metrics import bins as bins_module


def evaluate(samples, *metrics, batch=4, size=None):
    evaluator = Evaluator(list(metrics) or [CalibrationMetric()])
    for start in range(0, len(samples), batch):
        evaluator.process(samples[start : start + batch])
    return evaluator.evaluate(len(samples) if size is None else size)


@pytest.mark.parametrize('samples', [classified(41), segmented(5)], ids=['mmpretrain', 'mmseg'])
@pytest.mark.parametrize('num_bins', [15, 10])
def test_values_equal_plain_loops(samples, num_bins):
    conf, correct = flatten(samples)
    values = evaluate(samples, ECE(num_bins=num_bins), AECE(num_bins=num_bins))
    assert values == {
        'calibration/ECE': pytest.approx(expected_calibration_error(conf, correct, num_bins)),
        'calibration/AECE': pytest.approx(adaptive_calibration_error(conf, correct, num_bins)),
    }
    assert evaluate(samples, CalibrationMetric(num_bins=num_bins)) == values


def test_prefixes_keep_two_metrics_apart():
    values = evaluate(classified(9), ECE(), ECE(num_bins=5, prefix='coarse'))
    assert set(values) == {'calibration/ECE', 'coarse/ECE'}


def test_registered_in_the_root_under_names_that_no_toolbox_has():
    mmpretrain = pytest.importorskip('mmpretrain')
    mmseg = pytest.importorskip('mmseg')
    for name in ('ECE', 'AECE', 'CalibrationMetric'):
        assert METRICS.get(name).__module__.startswith('mmcalib')
        for toolbox in (mmpretrain, mmseg):
            registry = __import__(f'{toolbox.__name__}.registry', fromlist=['METRICS']).METRICS
            assert name not in registry.module_dict


@pytest.mark.parametrize('limit', [1_000_000, 300])
def test_padding_is_left_out(limit, monkeypatch):
    monkeypatch.setattr(bins_module, 'EXACT_LIMIT', limit)
    samples = segmented(5)
    assert evaluate([*samples, samples[0]], size=5) == pytest.approx(evaluate(samples), abs=1e-9)


def test_rows_are_small():
    metric = CalibrationMetric(['ECE'])
    metric.process(None, segmented(3, size=(200, 300)))
    assert all(len(pickle.dumps(row)) < 2000 for row in metric.results)


def test_nothing_valid_is_nan():
    samples = segmented(2)
    for sample in samples:
        sample['gt_sem_seg']['data'].fill_(255)
    assert all(math.isnan(value) for value in evaluate(samples).values())
    assert all(math.isnan(value) for value in evaluate([]).values())


def test_evaluating_twice_starts_afresh():
    metric = CalibrationMetric()
    first = evaluate(segmented(3), metric)
    assert evaluate(segmented(3), metric) == first


def test_errors_name_the_image_or_the_index():
    with pytest.raises(ValueError, match=r'image_1\.jpg has 1020 NaN'):
        samples = segmented(2)
        samples[1]['seg_logits']['data'].fill_(float('nan'))
        evaluate(samples)
    with pytest.raises(ValueError, match='pred_score of sample 2 has 7 NaN'):
        samples = classified(3)
        samples[2]['pred_score'].fill_(float('nan'))
        evaluate(samples)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_bins=0), 'num_bins must be an integer of at least 1, got 0'),
        (dict(metrics=['MCE!']), r"got \('MCE!',\)"),
        (dict(metrics=[]), 'metrics must be some of'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CalibrationMetric(**options)


def _rank(rank, world_size, shares, size, limit, folder):
    torch.set_num_threads(1)
    bins_module.EXACT_LIMIT = limit
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=world_size
    )
    metric = CalibrationMetric(collect_dir=f'{folder}/collected')
    values = evaluate(shares[rank], metric, batch=2, size=size)
    torch.save(values, f'{folder}/{rank}.pt')
    # No destroy_process_group: in torch 2.6 it can hang once another rank has left.
    torch.distributed.barrier()


@pytest.mark.parametrize('limit', [1_000_000, 300], ids=['exact', 'fine'])
@pytest.mark.parametrize(
    'shares',
    [
        [[0, 2, 4, 6], [1, 3, 5, 0]],  # a sampler's interleaved order, padded with the first
        [[0, 2, 4, 6], [1, 3, 5]],  # not padded
        [[6, 5, 4, 3, 2, 1, 0], []],  # one rank has none
        [[0, 3, 6], [1, 4, 0], [2, 5, 1]],
    ],
    ids=['padded', 'uneven', 'empty', 'three'],
)
def test_any_split_over_ranks(shares, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(bins_module, 'EXACT_LIMIT', limit)
    samples = segmented(7)
    expected = evaluate(samples)
    mp.spawn(
        _rank,
        (
            len(shares),
            [[samples[i] for i in share] for share in shares],
            len(samples),
            limit,
            str(tmp_path),
        ),
        nprocs=len(shares),
    )
    for rank in range(len(shares)):
        values = torch.load(tmp_path / f'{rank}.pt', weights_only=False)
        assert values == pytest.approx(expected, abs=1e-9)
