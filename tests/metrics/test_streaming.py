"""A stream of batches gives the values of measure, evaluate and CalibrationMetric."""

import pickle

import numpy as np
import pytest
import torch
from doors import by_door, draw_logits, probabilities, registered_values, stream_of
from forked import on_ranks
from samples import as_segmented
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mmcalib
from mmcalib.metrics import NAMES, StreamingMetrics, counts, intervals, measurement, streaming
from mmcalib.openmmlab.metrics import CalibrationMetric

HALVINGS = 6
ALL_METRICS = [*NAMES, 'risk@coverage_0.8', 'coverage@risk_0.1']
SHAPES = {'rows': (101, 5), 'maps': (7, 4, 9, 11), 'volumes': (3, 3, 4, 5, 6), 'binary': (40, 1)}


def random_batches(kind):
    return draw_logits(*SHAPES[kind], ignored=0.2)


@pytest.fixture(autouse=True)
def coarse_intervals():
    """Find the ends of intervals coarsely; 30 halvings for each take most of the time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(intervals, 'HALVINGS', HALVINGS)
        yield


@pytest.mark.parametrize('kind', SHAPES)
def test_stream_any_batches_equals_measure(kind):
    logits, labels = random_batches(kind)
    stream = StreamingMetrics(ALL_METRICS, ignore_index=255, interval=0.9)
    expected = mmcalib.measure(
        probabilities(logits.double()), labels, ALL_METRICS, ignore_index=255, interval=0.9
    )
    for size in (1, 3, 1000):
        stream.reset()
        for batch in zip(logits.split(size), labels.split(size), strict=True):
            stream.update(*batch)
        assert stream.compute() == pytest.approx(expected, rel=1e-5, abs=1e-4), size


@pytest.mark.parametrize('rows', [4096, 20])
def test_stream_several_labels_equal_measure(rows, monkeypatch):
    monkeypatch.setattr(streaming, 'ROWS_OF_LABELS', rows)
    logits, labels = label_batches()
    stream = StreamingMetrics(['ECE', 'NLL', 'AUROC'])
    for index, batch in enumerate(zip(logits.split(7), labels.split(7), strict=True)):
        stream.update(*batch)
        if index == 4:
            stream.compute()
    expected = mmcalib.measure(logits.sigmoid(), labels, ['ECE', 'NLL', 'AUROC'])
    actual = stream.compute()
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert actual[name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.parametrize('kind', ['labels', *SHAPES])
@pytest.mark.parametrize('interval', [None, 0.9])
def test_stream_caller_overwrites_batches_same_values(kind, interval):
    logits, labels = label_batches() if kind == 'labels' else random_batches(kind)
    options = dict(ignore_index=255, interval=interval)
    expected = StreamingMetrics(['ECE', 'AUROC', 'NLL', 'temperature'], **options)
    actual = StreamingMetrics(['ECE', 'AUROC', 'NLL', 'temperature'], **options)
    for batch_logits, batch_labels in zip(logits.split(20), labels.split(20), strict=True):
        expected.update(batch_logits, batch_labels)
        buffers = [batch_logits.clone(), batch_labels.clone()]
        actual.update(*buffers)
        buffers[0].sigmoid_()
        buffers[1].zero_()
    assert actual.compute().to_dict() == expected.compute().to_dict()


def test_stream_several_labels_many_or_few_equal_with_interval(monkeypatch):
    monkeypatch.setattr(counts, 'EXACT_LIMIT', 200)
    logits, labels = label_batches()
    logits = logits / 1e4  # Rounded confidences would be tied.
    values = label_values([(logits, labels)])
    with_interval = label_values([(logits, labels)], interval=0.9)
    assert with_interval['AUROC'] == values['AUROC']


@pytest.mark.parametrize(
    ('shapes', 'message'),
    [
        ([(4, 3), (4, 3, 2, 5)], '3 classes, and others maps of 3 classes'),
        ([(4, 3), (4, 2)], '3 classes, and others 2 classes'),
        ([(4, 2), (4, 1)], '2 classes, and others one sigmoid'),
    ],
)
def test_stream_other_kind_of_batch_raises_and_keeps_batches(shapes, message):
    stream = StreamingMetrics('accuracy')
    stream.update(*zero_batch(shapes[0]))
    with pytest.raises(ValueError, match=message):
        stream.update(*zero_batch(shapes[1]))
    assert stream.compute() == 100.0
    stream.reset()
    stream.update(*zero_batch(shapes[1]))


def zero_batch(shape):
    return torch.zeros(shape), torch.zeros(shape[0], *shape[2:], dtype=torch.int64)


def test_stream_several_labels_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(counts, 'EXACT_LIMIT', 1000)
    sizes = []
    for num_images in (100_000, 200_000):
        logits, labels = label_batches(num_images, num_labels=4)
        batches = zip(logits.split(1000), labels.split(1000), strict=True)
        stream = stream_of(batches, metrics=['ECE', 'AECE'])
        stream.compute()
        sizes.append(len(pickle.dumps(stream)))
    assert sizes[1] < 1.2 * sizes[0]


def test_stream_arrays_columns_and_masks_equal_measure():
    logits, labels = random_batches('rows')
    masked = np.ma.array(labels.numpy(), mask=np.arange(len(labels)) % 3 == 0)
    expected = mmcalib.measure(probabilities(logits), masked, ALL_METRICS[:5], ignore_index=255)
    for values in (logits, logits.numpy()):
        stream = StreamingMetrics(ALL_METRICS[:5], ignore_index=255)
        stream.update(values, masked[:, None])
        assert stream.compute() == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_stream_one_name_returns_a_number_and_no_prediction_nan():
    stream = StreamingMetrics('ECE')
    with pytest.warns(UserWarning, match='no prediction is valid'):
        assert stream.compute() != stream.compute()
    stream.update(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert isinstance(stream.compute(), float)


@pytest.mark.parametrize('limit', [1_000_000, 100])
def test_doors_many_or_few_predictions_agree(limit, monkeypatch):
    monkeypatch.setattr(counts, 'EXACT_LIMIT', limit)
    monkeypatch.setattr(measurement, 'IMAGES_PER_MERGE', 2)
    logits, labels = random_batches('maps')
    values = by_door(logits, labels, batch_size=2, metrics=ALL_METRICS, ignore_index=255)
    values['registered'] = registered_values(logits, labels, ALL_METRICS)
    # Rounded fine bins of single images are float32.
    tolerance = 1e-9 if limit > 1000 else 1e-6
    for door in ('evaluate', 'registered'):
        assert values[door] == pytest.approx(values['stream'], abs=tolerance), door
    # Probabilities of float32 are those of logits to 1e-7 of each.
    assert values['measure'] == pytest.approx(values['stream'], rel=1e-5, abs=1e-4)


GROUPS = ['a', 'a', 'b', 'c', 'c', 'd', 'd']
# Kind of predictions, protocol, and a limit of exact fine bins that two ranks exceed together.
RANK_CASES = [
    ('maps', 'pooled', 1_000_000),
    ('maps', 'pooled', 400),
    ('maps', 'image', 1_000_000),
    ('rows', 'pooled', 60),
]


def rank_values(kind, protocol, limit, images, **options):
    """Return the values of a stream that gets some images, and those over groups of maps."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(counts, 'EXACT_LIMIT', limit)
        monkeypatch.setattr(intervals, 'HALVINGS', HALVINGS)  # Forked processes have no fixtures.
        data = TensorDataset(*random_batches(kind))
        stream = stream_of(
            DataLoader(data, batch_size=3, sampler=images),
            metrics=ALL_METRICS,
            ignore_index=255,
            interval=0.9,
            protocol=protocol,
            **options,
        )
        values = [dict(stream.compute())]
        if kind == 'maps' and protocol == 'pooled' and stream.size is not None:
            values.append(dict(stream.compute(GROUPS)))
        return values


def label_batches(num_images=60, num_labels=3):
    torch.manual_seed(0)
    logits = 2 * torch.randn(num_images, num_labels)
    labels = (torch.rand(logits.shape) < logits.sigmoid()).long()
    return logits, labels


def label_values(batches, **options):
    """Return the values of several labels of a stream, as lists."""
    names = ['ECE', 'AUROC', 'NLL', 'temperature']
    return stream_of(batches, metrics=names, **options).compute().to_dict()


def save_rank_values(rank, folder):
    logits, labels = label_batches()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(streaming, 'ROWS_OF_LABELS', 20)
        monkeypatch.setattr(intervals, 'HALVINGS', HALVINGS)
        label_batches_of_rank = [*zip(logits.split(7), labels.split(7), strict=True)][rank::2]
        values_by_label = {
            'both': label_values(label_batches_of_rank),
            'first': label_values([(logits, labels)] if rank == 0 else []),
            'first, interval': label_values([(logits, labels)] if rank == 0 else [], interval=0.9),
        }
    torch.save(values_by_label, f'{folder}/labels_{rank}.pt')
    other_kinds = StreamingMetrics(['ECE'])
    if rank == 0:
        other_kinds.update(logits, labels)
    else:
        other_kinds.update(logits, labels[:, 0])
    with pytest.raises(ValueError, match='3 labels, and others 3 classes'):
        other_kinds.compute()
    values = []
    for case in RANK_CASES:
        size = SHAPES[case[0]][0]
        sampler = DistributedSampler(range(size), num_replicas=2, rank=rank, shuffle=False)
        values.append(rank_values(*case, sampler, size=size))
        values.append(rank_values(*case, range(size) if rank == 0 else []))
    torch.save(values, f'{folder}/{rank}.pt')


def test_stream_two_ranks_with_padding_or_without_images_equal_one_process(tmp_path):
    on_ranks(save_rank_values, 2, str(tmp_path))  # The sampler repeats one of an odd number.
    expected_labels = {
        interval: label_values([label_batches()], interval=interval) for interval in (None, 0.9)
    }
    expected_values = []
    for case in RANK_CASES:
        size = SHAPES[case[0]][0]
        expected_values.append(rank_values(*case, range(size), size=size))
    for rank in range(2):
        for name, actual in torch.load(f'{tmp_path}/labels_{rank}.pt').items():
            expected = expected_labels[0.9 if 'interval' in name else None]
            assert actual.keys() == expected.keys()
            for key, value in expected.items():
                assert actual[key] == pytest.approx(value, abs=1e-6), (name, key)
        for index, actual in enumerate(torch.load(f'{tmp_path}/{rank}.pt')):
            for values, expected in zip(actual, expected_values[index // 2], strict=False):
                assert values == pytest.approx(expected, abs=1e-9), (rank, index)


def test_kept_results_are_pickled_without_their_block():
    metric = CalibrationMetric(['ECE', 'AECE'])
    logits, labels = random_batches('maps')
    for image, label in zip(logits, labels, strict=True):
        metric.process(None, [as_segmented(image, image.argmax(dim=0), label)])
    expected = metric.results[0]
    kept = metric.memory.keep(expected)
    assert len(pickle.dumps(kept)) < 50_000
    restored = pickle.loads(pickle.dumps(kept))
    for name in ('bins', 'fine_bins', 'sums'):
        assert torch.equal(getattr(kept, name), getattr(expected, name))
        assert torch.equal(getattr(restored, name), getattr(expected, name))
    assert kept.bins.data_ptr() != expected.bins.data_ptr()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize('shape', [(50, 1), (4, 1, 6, 7), (30, 3)])
def test_stream_sigmoid_of_large_and_half_logits_equals_two_logits(shape, dtype):
    torch.manual_seed(0)
    logits = (20 * torch.randn(shape)).to(dtype)
    labels = (torch.rand(shape) < 0.5).long()
    names = ['NLL', 'ECE', 'Brier', 'AUROC', 'temperature', 'refinement_NLL']
    one_logit = StreamingMetrics(names)
    one_logit.update(logits, labels if shape[1] == 3 else labels[:, 0])
    two_logits = StreamingMetrics(names)
    if shape[1] == 3:
        expected = []
        for label in range(3):
            two_logits.reset()
            column = logits[:, label]
            two_logits.update(torch.stack([0 * column, column], 1), labels[:, label])
            expected.append(two_logits.compute())
        expected = {name: np.array([values[name] for values in expected]) for name in names}
    else:
        two_logits.update(torch.cat([0 * logits, logits], 1), labels[:, 0])
        expected = two_logits.compute()
    actual = one_logit.compute()
    for name in names:
        assert actual[name] == pytest.approx(expected[name], rel=1e-5), name


def test_stream_outputs_of_sigmoid_warn():
    probs = torch.rand(40, 1)
    stream = stream_of([(probs, (probs[:, 0] > 0.5).long())], metrics='ECE')
    with pytest.warns(UserWarning, match='leave the sigmoid out'):
        stream.compute()


def reloaded(state, tmp_path):
    torch.save({'epoch': 3, 'stream': state}, tmp_path / 'checkpoint.pth')
    return torch.load(tmp_path / 'checkpoint.pth', weights_only=True)['stream']


def batches_of_kind(kind):
    logits, labels = label_batches() if kind == 'labels' else random_batches(kind)
    size = 2 if kind in ('maps', 'volumes') else 7
    return [*zip(logits.split(size), labels.split(size), strict=True)]


def all_values(values):
    """Return values with the rates of classes and the bins of a diagram."""
    result = dict(values)
    if values.rates is not None:
        result |= values.rates.to_dict()
    if values.statistics is not None:
        result['narrow_bins'] = values.statistics.narrow_bins
    return result


def assert_same_values(actual, expected, *, rtol=1e-12):
    actual = all_values(actual)
    expected = all_values(expected)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=rtol, err_msg=name)


# Kind of predictions and options; the limits of exact fine bins are passed before and after a save.
STATE_CASES = [
    ('rows', {'interval': 0.9}),
    ('rows', {'keep_images': True}),
    ('maps', {'interval': np.float64(0.9)}),
    ('maps', {'protocol': 'image', 'interval': 0.9}),
    ('maps', {'protocol': 'boundary', 'boundary_width': 2}),
    ('volumes', {}),
    ('binary', {'interval': 0.9}),
    ('labels', {}),
    ('labels', {'interval': 0.9}),
    ('labels', {'per_label': False, 'interval': 0.9}),
]


@pytest.mark.parametrize('limit', [1_000_000, 250, 60])
@pytest.mark.parametrize(('kind', 'options'), STATE_CASES)
def test_stream_saved_or_merged_equals_one_that_never_stopped(
    kind, options, limit, tmp_path, monkeypatch
):
    monkeypatch.setattr(counts, 'EXACT_LIMIT', limit)
    monkeypatch.setattr(streaming, 'ROWS_OF_LABELS', 20)
    options = dict(options, metrics=['ECE', 'AUROC', 'NLL', 'ClasswiseECE'], ignore_index=255)
    batches = batches_of_kind(kind)
    # Several labels are counted in blocks, at whose ends AVX2 rounds sigmoids otherwise.
    rtol = 1e-7 if kind == 'labels' else 1e-12
    half = len(batches) // 2
    expected = stream_of(batches, **options).compute()

    saved = stream_of(batches[:half], **options)
    state = reloaded(saved.state_dict(), tmp_path)
    resumed = stream_of(batches[-1:], **options)  # A load forgets these.
    resumed.load_state_dict(state)
    for batch in batches[half:]:
        resumed.update(*batch)
    assert_same_values(resumed.compute(), expected, rtol=rtol)

    # A stream goes on after its state was taken.
    other = stream_of(batches[half:], **options)
    values_of_other = other.compute()
    saved.merge(other)
    assert_same_values(saved.compute(), expected, rtol=rtol)
    assert_same_values(other.compute(), values_of_other)


def test_stream_default_metrics_state_of_sigmoid_keeps_its_names(tmp_path):
    stream = stream_of(batches_of_kind('binary'), ignore_index=255)
    resumed = StreamingMetrics(ignore_index=255)
    resumed.load_state_dict(reloaded(stream.state_dict(), tmp_path))
    assert_same_values(resumed.compute(), stream.compute())
    assert 'ClasswiseECE' in resumed.compute()


def test_stream_merged_groups_are_in_the_order_of_the_streams():
    batches = batches_of_kind('maps')
    options = dict(metrics=['ECE'], ignore_index=255, interval=0.9)
    merged = stream_of(batches[:2], **options)
    merged.merge(stream_of(batches[2:], **options))
    expected = stream_of(batches, **options).compute(GROUPS)
    assert_same_values(merged.compute(GROUPS), expected)


@pytest.mark.parametrize('protocol', ['paper', 'pooled'])
def test_stream_saved_within_consecutive_images_equals_one_that_never_stopped(protocol):
    logits, labels = random_batches('maps')
    logits = logits.repeat(3, 1, 1, 1)
    labels = labels.repeat(3, 1, 1)
    options = dict(metrics=['ECE', 'NLL'], protocol=protocol, ignore_index=255, interval=0.9)
    batches = [*zip(logits.split(3), labels.split(3), strict=True)]
    resumed = StreamingMetrics(**options)
    resumed.load_state_dict(stream_of(batches[:4], **options).state_dict())
    for batch in batches[4:]:
        resumed.update(*batch)
    assert_same_values(resumed.compute(), stream_of(batches, **options).compute())
    if protocol == 'paper':
        with pytest.raises(ValueError, match="'paper' averages over consecutive images"):
            resumed.merge(resumed)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            {'metrics': ['NLL']},
            r"other stream has metrics=\['NLL'\], and this one metrics=\['ECE'\]",
        ),
        ({'metrics': 'ECE'}, 'create both with the same options'),
        ({'num_bins': 10}, 'num_bins=10, and this one num_bins=15'),
        ({'interval': 0.9}, 'interval=0.9, and this one interval=None'),
        ({'ignore_index': 255}, 'ignore_index=255'),
    ],
)
def test_stream_state_of_other_options_raises_and_keeps_predictions(options, message):
    batches = batches_of_kind('rows')
    other = StreamingMetrics(**{'metrics': ['ECE'], **options})
    stream = stream_of([(batches[0][0], batches[0][0].argmax(1))], metrics=['ECE'])
    expected = stream.compute()
    with pytest.raises(ValueError, match=message):
        stream.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=message):
        stream.merge(other)
    assert_same_values(stream.compute(), expected)


def test_stream_no_state_or_other_kind_raises_and_keeps_predictions():
    stream = stream_of([zero_batch((4, 3))], metrics='accuracy')
    with pytest.raises(ValueError, match='got OrderedDict: give what state_dict'):
        stream.load_state_dict(nn.Linear(2, 2).state_dict())
    with pytest.raises(ValueError, match='3 classes, and others 2 classes'):
        stream.merge(stream_of([zero_batch((5, 2))], metrics='accuracy'))
    assert stream.compute() == 100.0


def save_rank_state(rank, folder):
    logits, labels = random_batches('rows')
    options = dict(metrics=['ECE', 'NLL'], ignore_index=255, interval=0.9, size=len(logits))
    batches = [*zip(logits[rank::2].split(9), labels[rank::2].split(9), strict=True)]
    torch.save(stream_of(batches[:3], **options).state_dict(), f'{folder}/state_{rank}.pth')
    torch.distributed.barrier()
    stream = StreamingMetrics(**options)
    with pytest.raises(ValueError, match=f'rank {1 - rank} of 2, and this one of rank {rank} of 2'):
        stream.load_state_dict(torch.load(f'{folder}/state_{1 - rank}.pth', weights_only=True))
    stream.load_state_dict(torch.load(f'{folder}/state_{rank}.pth', weights_only=True))
    for batch in batches[3:]:
        stream.update(*batch)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(intervals, 'HALVINGS', HALVINGS)
        torch.save(dict(stream.compute()), f'{folder}/values_{rank}.pth')


def test_stream_two_ranks_resumed_equal_one_process(tmp_path):
    on_ranks(save_rank_state, 2, str(tmp_path))
    options = dict(metrics=['ECE', 'NLL'], ignore_index=255, interval=0.9)
    expected = dict(stream_of(batches_of_kind('rows'), **options).compute())
    for rank in range(2):
        actual = torch.load(f'{tmp_path}/values_{rank}.pth')
        # A softmax of other batches rounds float32 otherwise.
        assert actual == pytest.approx(expected, rel=1e-6)
