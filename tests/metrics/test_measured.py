"""The result of measure, evaluate and a stream: a dict, a table, JSON, and a copy by pickle."""

import copy
import io
import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from doors import by_door, draw_logits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.metrics import StreamingMetrics
from mmcalib.metrics.measured import Measured
from mmcalib.posthoc import TemperatureScaler

NAMES = ['ECE', 'AECE', 'NLL', 'Brier', 'AUROC', 'gap']


def draw_rows():
    return draw_logits(200, 4)


def measured_by_door(**options):
    return by_door(*draw_rows(), metrics=NAMES, **options)


@pytest.mark.parametrize('interval', [None, 0.9])
def test_measured_by_any_door_is_a_dict_with_a_table(interval):
    for measured in measured_by_door(interval=interval).values():
        assert isinstance(measured, dict)
        assert measured == dict(measured)
        assert measured.names == NAMES
        lines = str(measured).splitlines()
        for name, line in zip(NAMES, lines[2:], strict=False):
            digits = 4 if name in ('NLL', 'Brier') else 2
            assert line.startswith(name)
            assert f' {measured[name]:.{digits}f}' in line
            if interval and name not in ('AECE', 'AUROC'):
                low = measured[f'{name}_low']
                high = measured[f'{name}_high']
                assert f'[{low:.{digits}f}, {high:.{digits}f}]' in line
        assert '200 predictions' in str(measured)
        assert ('90 %' in str(measured)) == (interval is not None)


def test_measured_with_interval_names_metrics_without_one():
    for measured in measured_by_door(interval=0.9).values():
        assert measured.names_without_interval == ['AECE', 'AUROC']
        assert 'AECE, AUROC have none' in str(measured)
    for measured in measured_by_door().values():
        assert measured.names_without_interval == []


def test_measured_maps_with_one_valid_pixel_each_are_images():
    probs = torch.full((4, 3, 2, 2), 1 / 3)
    labels = torch.full((4, 2, 2), 255)
    labels[:, 0, 0] = 0
    measured = mmcalib.measure(probs, labels, ['ECE'], ignore_index=255, interval=0.9)
    assert measured.units == '4 images'


def test_measured_several_labels_table_has_a_row_each_and_their_mean():
    logits, labels = draw_rows()
    labels = (logits + labels[:, None] > 1).long()
    labels[:, 3] = 255
    measured = mmcalib.measure(
        logits.sigmoid(), labels, ['ECE', 'NLL'], ignore_index=255, interval=0.9
    )
    rows = str(measured).splitlines()[2:7]
    for label, row in enumerate(rows[:3]):
        ece, low, high = (measured[key][label] for key in ('ECE', 'ECE_low', 'ECE_high'))
        assert row.split()[0] == str(label)
        assert f'{ece:.2f} [{low:.2f}, {high:.2f}]' in row
        expected = mmcalib.measure(
            logits.sigmoid()[:, label], labels[:, label], ['ECE', 'NLL'], interval=0.9
        )
        assert measured.by_label[label] == expected
    assert 'nan' in rows[3]
    assert rows[4].split() == [
        'mean', f'{measured["ECE_macro"]:.2f}', f'{measured["NLL_macro"]:.4f}'
    ]  # fmt: skip
    text = json.dumps(measured.to_dict(), allow_nan=False)
    assert json.loads(text)['ECE'][3] is None
    assert json.loads(text)['ECE'][:3] == measured['ECE'][:3].tolist()
    assert json.loads(text)['ECE_macro'] == measured['ECE_macro']


def test_measured_to_dict_is_json_of_the_same_values():
    for measured in measured_by_door(interval=0.9).values():
        assert json.loads(json.dumps(measured.to_dict(), allow_nan=False)) == measured


@dataclass
class Record:
    metrics: dict


def test_measured_in_a_checkpoint_is_an_equal_dict_that_torch_loads():
    measured = measured_by_door(interval=0.9)['measure']
    file = io.BytesIO()
    torch.save({'metrics': measured}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)['metrics']
    assert list(loaded.items()) == list(measured.items())
    assert asdict(Record(measured))['metrics'] == measured
    assert '[' not in str(Measured({'ECE': 1.5}))


def results_by_kind():
    """Return one result of each kind that the library returns."""
    logits, labels = draw_rows()
    probs = logits.softmax(dim=1)
    conf, predicted = probs.max(dim=1)
    several_labels = nn.functional.one_hot(labels, 4)
    several_labels[0] = 1
    loader = DataLoader(TensorDataset(logits, labels), batch_size=64)
    model = nn.Linear(4, 4)
    nn.init.eye_(model.weight)
    return {
        'value': mmcalib.measure(probs, labels, NAMES),
        'interval': mmcalib.measure(probs, labels, ['ECE', 'rate_gap'], interval=0.9),
        'labels': mmcalib.measure(logits.sigmoid(), several_labels, NAMES),
        'comparison': mmcalib.compare(probs, (logits / 2).softmax(dim=1), labels, NAMES),
        'threshold': mmcalib.threshold(conf, predicted == labels, risk=0.6),
        'calibrated': mmcalib.calibrate(model, loader, method='temperature'),
    }


def test_results_copies_print_the_same():
    for kind, result in results_by_kind().items():
        copies = [copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))]
        if isinstance(result, Measured):
            copies.append(result.copy())
        for copied in copies:
            assert type(copied) is type(result), kind
            assert str(copied) == str(result), kind
            if isinstance(result, Measured):
                assert copied.to_dict() == result.to_dict(), kind


def test_measured_statistics_are_not_those_of_others():
    logits, labels = draw_rows()
    scales = [0.1 * n for n in range(1, 40)]

    def measure_scaled(scale):
        return mmcalib.measure((logits * scale).softmax(dim=1), labels, ['ECE', 'NLL'])

    with ThreadPoolExecutor(4) as pool:
        measurements = [*pool.map(measure_scaled, scales)]
    for scale, measured in zip(scales, measurements, strict=True):
        conf, predicted = (logits * scale).softmax(dim=1).max(dim=1)
        count, correct, conf_sum = measured.statistics.narrow_bins.sum(dim=1)
        assert count == len(labels)
        assert correct == (predicted == labels).sum()
        assert conf_sum == pytest.approx(conf.double().sum().item(), rel=1e-6)
    assert len(pickle.dumps(measurements[0].statistics)) < 20_000


def test_stream_without_updates_is_nan_with_a_warning_here():
    for options in ({}, dict(interval=0.9), dict(protocol='image', interval=0.9)):
        stream = StreamingMetrics(['ECE', 'NLL'], **options)
        with pytest.warns(UserWarning, match='no prediction is valid') as caught:
            measured = stream.compute()
        assert caught[0].filename == __file__
        assert np.isnan(list(measured.values())).all()
        assert set(measured.to_dict().values()) == {None}
        assert 'nan' in str(measured)


def test_warnings_point_to_the_caller():
    probs = torch.rand(40, 1)
    labels = torch.arange(40) % 2
    loader = [(torch.rand(40, 3), torch.arange(40) % 3)]
    calls = [
        lambda: TemperatureScaler().fit(probs, labels),
        lambda: TemperatureScaler.from_parameters({'temperature': 2.0}).transform(probs),
        lambda: mmcalib.evaluate(nn.Identity(), loader),
        lambda: mmcalib.measure([[0.5, 0.5]], [9], ['ECE'], ignore_index=9),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            call()
        assert {warning.filename for warning in caught} == {__file__}


def test_mean_over_labels_by_name_raises_with_remedy():
    with pytest.raises(ValueError, match="metrics=\\['ECE'\\]"):
        mmcalib.measure([[0.5, 0.5]], [1], ['ECE_macro'])


@pytest.mark.parametrize(('interval', 'remedy'), [(95, 'give 0.95'), (1, 'between 0 and 1')])
def test_interval_out_of_range_raises(interval, remedy):
    with pytest.raises(ValueError, match=remedy):
        mmcalib.measure([[0.5, 0.5]], [1], ['ECE'], interval=interval)


def test_measured_with_keys_of_a_trainer_prints_as_a_dict():
    measured = mmcalib.measure([[0.9, 0.1], [0.8, 0.2]], [0, 1], ['ECE', 'NLL'], interval=0.9)
    # The Trainer of transformers does the same.
    metrics = type(measured)({key: float(value) for key, value in measured.items()})
    for key in list(metrics):
        metrics[f'eval_{key}'] = metrics.pop(key)
    metrics['eval_runtime'] = 0.1
    assert str(metrics) == str(dict(metrics))
