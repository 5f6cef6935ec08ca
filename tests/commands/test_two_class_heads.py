"""Heads with one sigmoid, of one or several labels, by every tool: the probability of class 1."""

import json
import pickle
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS
from overconfident_checkpoints import (
    DIGITS,
    SCENES,
    load,
    model_and_batch,
    record_in,
    write_checkpoint,
)

from mmcalib.metrics import measure
from mmcalib.reports.figures.from_files import figure_from_files

NAMES = ['ClasswiseECE', 'rate_gap']
KEYS = [f'calibration/{name}{end}' for name in NAMES for end in ('', '_low', '_high')]


@TRANSFORMS.register_module(force=True)
class ToStroke(BaseTransform):
    """Make one foreground class of all digits."""

    def transform(self, results):
        mask = results['gt_seg_map']
        mask[(mask > 1) & (mask < 255)] = 1
        return results


BINARY = f"""
_base_ = '{SCENES}'
model = dict(decode_head=dict(num_classes=2, out_channels={{}}, threshold=0.4,
    loss_decode=dict(use_sigmoid={{}})))
pipeline = [dict(type='ToStroke'), dict(type='PackSegInputs')]
two = dict(classes=('background', 'stroke'), palette=[[0, 0, 0], [255, 255, 255]])
train_dataloader = dict(dataset=dict(pipeline=pipeline, metainfo=two))
val_dataloader = dict(dataset=dict(indices=8, pipeline=pipeline, metainfo=two))
test_dataloader = dict(dataset=dict(indices=8, pipeline=pipeline, metainfo=two))
"""
LABELS = f"""
_base_ = '{DIGITS}'
model = dict(head=dict(_delete_=True, type='MultiLabelLinearClsHead', in_channels=128,
    num_classes=10, loss=dict(type='CrossEntropyLoss', use_sigmoid=True)))
val_dataloader = dict(dataset=dict(indices=150))
test_dataloader = dict(dataset=dict(indices=150))
val_evaluator = [dict(type='MultiLabelMetric', average='macro')]
test_evaluator = val_evaluator
"""
CLASSES = f"""
_base_ = '{DIGITS}'
val_dataloader = dict(dataset=dict(indices=150))
test_dataloader = dict(dataset=dict(indices=150))
"""
HEADS = {
    'binary': (BINARY.format(1, True), 'decode_head.conv_seg', 8),
    'two logits': (BINARY.format(2, False), 'decode_head.conv_seg', 8),
    'labels': (LABELS, 'head.fc', 200),
    'classes': (CLASSES, 'head.fc', 200),
}


@pytest.fixture(scope='module')
def heads(tmp_path_factory):
    """A folder with a config and a checkpoint of each head, shifted as class weights shift it."""
    folder = tmp_path_factory.mktemp('heads')
    for name, (config, layer, num_images) in HEADS.items():
        stem = name.replace(' ', '_')
        (folder / f'{stem}.py').write_text(config)
        trained_config = DIGITS if layer == 'head.fc' else folder / f'{stem}.py'
        path = write_checkpoint(folder / f'{stem}.pth', trained_config, layer, num_images)
        content = load(path)
        weight = content['state_dict'][f'{layer}.weight']
        weight /= 8
        bias = content['state_dict'][f'{layer}.bias']
        bias /= 8
        if name == 'labels':
            bias[[2, 7]] += 2.0
        else:
            bias[-1] += 1.5
        torch.save(content, path)
    return folder


@pytest.fixture
def run_folder(heads):
    return heads


def test_head(run, name, *options, checkpoint=None):
    """Test a head with --calibration; return the record, the printed lines and the predictions."""
    stem = name.replace(' ', '_')
    work_dir = f'test_{stem}'
    output = run(
        'test.py',
        f'{stem}.py',
        checkpoint or f'{stem}.pth',
        *('--calibration', '--work-dir', work_dir, '--out', 'out.pkl', *options),
    )
    record = json.loads(Path(work_dir, 'results.json').read_text())
    return record, output, pickle.loads(Path('out.pkl').read_bytes())


test_head.__test__ = False


def probability_maps(samples):
    """Return P(y = 1) and labels of mmseg's samples, ``(N, H, W)`` each."""
    probs = []
    labels = []
    for sample in samples:
        scores = sample['seg_logits']['data']
        probs.append(scores[0] if len(scores) == 1 else scores.softmax(0)[1])
        labels.append(sample['gt_sem_seg']['data'][0].long())
    return torch.stack(probs)[:, None], torch.stack(labels)


@pytest.mark.parametrize('name', ['binary', 'two logits'])
def test_test_two_classes_shows_p_of_1_first_and_its_rate(run, name):
    record, output, samples = test_head(run, name)
    probs, labels = probability_maps(samples)
    expected = measure(probs, labels, NAMES, interval=0.95, ignore_index=255)
    for key in KEYS:
        assert record['metrics'][key] == pytest.approx(expected[key.split('/')[1]], abs=1e-3)
    (sentence,) = expected.rates.sentences()
    assert sentence in output
    assert sentence.startswith('P(y = 1) is ')
    assert sentence.endswith('a temperature cannot mend that, platt or auto can.')
    rates = record['rates']['calibration']
    assert rates['classes'] == ['background', 'stroke']
    assert rates['probs'] == pytest.approx(expected.rates.probs, abs=1e-4)
    assert rates['frequencies'] == pytest.approx(expected.rates.frequencies)
    rows = [line.split('  ')[0] for line in output.splitlines()]
    assert 0 < rows.index('ECE of P(y = 1)') < rows.index('ECE') < rows.index('rate_gap')
    report = run('report.py', f'test_{name.replace(" ", "_")}')
    assert report.index('ECE of P(y = 1) (%)') < report.index(' ECE (%)')
    assert sentence in report


def test_test_several_labels_names_those_whose_rates_differ(run):
    record, output, samples = test_head(run, 'labels')
    scores = torch.stack([sample['pred_score'] for sample in samples])
    present = torch.zeros_like(scores)
    for row, sample in enumerate(samples):
        present[row, sample['gt_label']] = 1
    rates = record['rates']['calibration']
    assert rates['are_of_labels']
    assert rates['probs'] == pytest.approx((100 * scores.mean(0)).tolist(), abs=1e-3)
    assert rates['frequencies'] == pytest.approx((100 * present.mean(0)).tolist(), abs=1e-3)
    gaps = 100 * (scores - present)
    expected_errors = (gaps.std(0) / len(samples) ** 0.5).tolist()
    assert rates['standard_errors'] == pytest.approx(expected_errors, rel=1e-3)
    sentence = next(line for line in output.splitlines() if 'frequency of the labels' in line)
    assert ' 2 (' in sentence
    assert ' 7 (' in sentence
    assert sentence.endswith('a temperature cannot mend that, platt or auto can.')
    pooled = measure(scores.flatten(), present.flatten().long(), NAMES)
    for name in NAMES:
        assert record['metrics'][f'calibration/{name}'] == pytest.approx(pooled[name], abs=1e-3)
    rows = [line.split('  ')[0] for line in output.splitlines()]
    assert 0 < rows.index('ECE of P(y = 1)') < rows.index('ECE')


def test_test_classes_names_the_one_whose_rate_differs(run):
    record, output, samples = test_head(run, 'classes')
    probs = np.stack([sample['pred_score'] for sample in samples])
    labels = np.array([int(sample['gt_label']) for sample in samples])
    expected = measure(probs, labels, NAMES, interval=0.95)
    assert record['metrics']['calibration/rate_gap'] == pytest.approx(expected['rate_gap'])
    assert 'calibration/ClasswiseECE' not in record['metrics']
    (sentence,) = expected.rates.sentences()
    assert sentence in output
    assert ' 9 (' in sentence
    assert sentence.endswith('a temperature cannot mend that, vector or auto can.')


def test_test_protocol_of_the_foreground_has_no_rates(run):
    config = "_base_ = 'binary.py'\ntest_evaluator = [dict(type='ECE', protocol='foreground')]\n"
    Path('foreground.py').write_text(config)
    record, output, _ = test_head(run, 'foreground', checkpoint='binary.pth')
    assert record['rates'] == {}
    assert 'calibration/Brier' in record['metrics']
    assert 'calibration/rate_gap' not in record['metrics']
    assert 'P(y = 1)' not in output


@pytest.mark.parametrize('name', ['binary', 'two logits', 'labels'])
def test_visualize_reliability_of_two_classes_draws_p_of_1(run, name):
    # The metric of the config asks for no bins of the classes.
    stem = name.replace(' ', '_')
    config = f"_base_ = '{stem}.py'\ntest_evaluator = [dict(type='ECE')]\n"
    Path(f'ece_{stem}.py').write_text(config)
    run('test.py', f'ece_{stem}.py', f'{stem}.pth', '--work-dir', f'ece_{stem}')
    record, _, _ = test_head(run, name)
    figure = figure_from_files('reliability', [f'ece_{stem}'])
    diagram, histogram = figure.axes
    assert diagram.get_ylabel() == 'share of labels 1 (%)'
    assert histogram.get_xlabel() == 'P(y = 1) (%)'
    expected = record['metrics']['calibration/ClasswiseECE']
    assert f'ECE of P(y = 1) {expected:.2f} %' in diagram.get_title()
    assert ('pooled over labels' in diagram.get_title()) == (name == 'labels')
    run('visualize.py', 'reliability', f'ece_{stem}', '--of-class', 'predicted', '--out', 'a.png')
    for drawing in (dict(of_class='predicted'), dict(equal_mass=True)):
        figure = figure_from_files('reliability', [f'ece_{stem}'], **drawing)
        assert figure.axes[0].get_ylabel() == 'accuracy (%)'


def test_visualize_reliability_of_a_label_draws_its_bins(run):
    _, _, samples = test_head(run, 'labels')
    probs = torch.stack([sample['pred_score'][7] for sample in samples])
    labels = torch.tensor([7 in sample['gt_label'].tolist() for sample in samples]).long()
    expected = measure(probs, labels, 'ClasswiseECE')
    figure = figure_from_files('reliability', ['test_labels'], of_class=7)
    title = figure.axes[0].get_title()
    assert 'label 7' in title
    assert f'ECE of P(y = 1) {expected:.2f} %' in title
    error = run(
        *('visualize.py', 'reliability', 'test_labels'),
        *('--of-class', 10, '--out', 'a.png'),
        code=2,
    )
    assert error.strip() == 'visualize.py: error: of_class must be from 0 to 9, got 10'


def test_visualize_reliability_of_a_class_draws_its_share(run):
    test_head(run, 'classes')
    figure = figure_from_files('reliability', ['test_classes'], of_class=9)
    assert figure.axes[0].get_ylabel() == 'share of labels 9 (%)'
    figure = figure_from_files('reliability', ['test_classes'])
    assert figure.axes[0].get_ylabel() == 'accuracy (%)'
    error = run(
        *('visualize.py', 'reliability', 'test_classes'),
        *('--of-class', 'cat', '--out', 'a.png'),
        code=2,
    )
    assert "must be the number of a class or 'predicted', got cat" in error


def calibrate_head(run, name, *options, out='out.pth', code=0):
    """Calibrate a head; return the content of the checkpoint and the output, or the error."""
    stem = name.replace(' ', '_')
    Path(out).unlink(missing_ok=True)
    output = run(
        *('calibrate.py', f'{stem}.py', f'{stem}.pth', '--out', out),
        *('--work-dir', 'calibrated', *options),
        code=code,
    )
    return output if code else (load(out), output)


@pytest.mark.parametrize(
    ('name', 'layer', 'prior'),
    [
        ('binary', 'decode_head.conv_seg', [0.9, 0.1]),
        ('classes', 'head.fc', [0.55, *[0.05] * 9]),
    ],
)
def test_calibrate_class_prior_shifts_the_checkpoint_alone(run, name, layer, prior):
    method = [] if name == 'binary' else ['--method', 'vector']
    plain, _ = calibrate_head(run, name, '--test', *method)
    shifted, output = calibrate_head(
        run, name, '--test', *method, '--class-prior', *prior, out='shifted.pth'
    )
    record = record_in(shifted)
    assert record['class_prior'] == prior
    for split in ('fitted', 'tested'):
        for when in ('before', 'after'):
            assert record[split][when] == record_in(plain)[split][when]
    assert record['tested']['changed'] != record_in(plain)['tested']['changed']
    assert 'Before and after, on test too, are without this shift' in output
    frequencies = record['fitted']['rates']['before']['frequencies']
    log_ratio = torch.tensor(prior).log() - (torch.tensor(frequencies) / 100).log()
    expected = log_ratio[1:] - log_ratio[0] if name == 'binary' else log_ratio - log_ratio.mean()
    states = [content['state_dict'] for content in (plain, shifted)]
    weights = [state[f'{layer}.weight'] for state in states]
    biases = [state[f'{layer}.bias'] for state in states]
    torch.testing.assert_close(*weights)
    torch.testing.assert_close(biases[1] - biases[0], expected, atol=1e-4, rtol=1e-4)


def test_calibrate_class_prior_of_a_temperature_is_measured_without_it(run):
    plain, _ = calibrate_head(run, 'classes', '--test')
    prior = [0.55, *[0.05] * 9]
    shifted, _ = calibrate_head(run, 'classes', '--test', '--class-prior', *prior, out='s.pth')
    assert record_in(plain)['method'] == 'temperature'
    assert record_in(shifted)['method'] == 'vector'
    assert record_in(shifted)['tested']['after'] == record_in(plain)['tested']['after']


def test_test_of_a_shifted_checkpoint_is_marked(run):
    calibrate_head(run, 'binary', '--class-prior', 0.9, 0.1)
    record, output, _ = test_head(run, 'binary', checkpoint='out.pth')
    assert record['model']['members'][0]['calibration']['class_prior'] == [0.9, 0.1]
    sentence = 'the scaling is shifted to other frequencies of the classes than these data have.'
    report = run('report.py', 'test_binary')
    for text in (output, report):
        assert 'platt, shifted to 90, 10 %' in text
        assert sentence in text
    run('test.py', 'binary.py', 'binary.pth', '--calibration', '--work-dir', 'test_plain')
    comparison = run('report.py', '--compare', 'test_plain', 'test_binary')
    assert 'ECE of P(y = 1) (%)' in comparison


@pytest.mark.parametrize(
    ('name', 'options', 'words'),
    [
        ('binary', [0.9, 0.3], '--class-prior must be frequencies above 0 that sum to 1'),
        ('binary', [1.0, 0.0], '--class-prior must be frequencies above 0 that sum to 1'),
        ('binary', [0.1], '--class-prior must be a frequency of each class'),
        ('binary', [0.5, 0.3, 0.2], 'must have a frequency of each of 2 classes, got 3'),
        ('binary', [0.9, 0.1, '--method', 'isotonic'], 'isotonic has no shift'),
        ('binary', [0.9, 0.1, '--out', 'mean.json'], 'which --class-prior cannot shift'),
        ('labels', [0.9, 0.1], 'this head predicts several'),
    ],
)
def test_calibrate_invalid_class_prior_is_one_line(run, name, options, words):
    error = calibrate_head(run, name, '--class-prior', *options, code=2)
    last_line = error.splitlines()[-1]
    assert last_line.startswith('calibrate.py: error: ')
    assert words in last_line
    assert not Path('out.pth').exists()


@pytest.mark.parametrize(
    ('name', 'layer', 'threshold'),
    [('binary', 'decode_head.conv_seg', 0.4), ('labels', 'head.fc', 0.5)],
)
def test_calibrate_sigmoid_by_default_folds_platt_that_test_and_onnx_predict(
    run, name, layer, threshold, torchscript
):
    _, _, before = test_head(run, name)
    content, output = calibrate_head(run, name, '--test')
    record = record_in(content)
    assert record['method'] == 'platt'
    assert record['layers'] == [layer]
    if record['tested']['changed']:
        assert f'since P(y = 1) moves across the threshold {threshold:g}, which stays' in output
    result, _, after = test_head(run, name, checkpoint='out.pth')
    actual = np.stack([probabilities(sample) for sample in after]).astype(np.float64)
    odds = np.stack([probabilities(sample) for sample in before]).astype(np.float64)
    odds = np.log(odds / (1 - odds))
    learned = record['parameters']
    if name == 'binary':
        learned = [learned]
    shape = (-1, *[1] * (odds.ndim - 2))
    scale = np.reshape([parameters['scale'] for parameters in learned], shape)
    shift = np.reshape([parameters['shift'] for parameters in learned], shape)
    expected = 1 / (1 + np.exp(-(scale * odds + shift)))
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    for metric in ('ClasswiseECE', 'NLL'):
        value = result['metrics'][f'calibration/{metric}']
        assert value == pytest.approx(record['tested']['after'][metric], abs=1e-3)
    for sample, probs in zip(after, actual, strict=True):
        if name == 'binary':
            predicted = sample['pred_sem_seg']['data'].numpy()
            np.testing.assert_array_equal(predicted == 1, probs > threshold)
        else:
            assert sample['pred_label'].tolist() == np.flatnonzero(probs >= threshold).tolist()
    run('export.py', f'{name}.py', 'out.pth', '--out', 'out.onnx', '--overwrite')
    _, batch = model_and_batch(f'{name}.py', 'test', 4)
    pixels = torch.stack(batch['inputs']).float().numpy()
    session = onnxruntime.InferenceSession('out.onnx')
    exported = []
    for image in pixels:
        (outputs,) = session.run(None, {'pixels': image[None]})
        exported.append(outputs[:, 1:] if name == 'binary' else outputs)
    np.testing.assert_allclose(np.concatenate(exported), actual[:4], atol=1e-5)


def test_calibrate_two_logits_by_default_folds_platt_that_test_and_onnx_predict(run, torchscript):
    _, _, samples = test_head(run, 'two logits')
    before, _ = probability_maps(samples)
    content, _ = calibrate_head(run, 'two logits', '--test')
    record = record_in(content)
    assert record['method'] == 'platt'
    assert record['layers'] == ['decode_head.conv_seg']
    result, _, samples = test_head(run, 'two logits', checkpoint='out.pth')
    actual, _ = probability_maps(samples)
    learned = record['parameters']
    expected = (learned['scale'] * before.double().logit() + learned['shift']).sigmoid()
    torch.testing.assert_close(actual.double(), expected, atol=1e-4, rtol=0)
    for metric in ('ClasswiseECE', 'NLL'):
        value = result['metrics'][f'calibration/{metric}']
        assert value == pytest.approx(record['tested']['after'][metric], abs=1e-3)
    run('export.py', 'two_logits.py', 'out.pth', '--out', 'out.onnx', '--overwrite')
    _, batch = model_and_batch('two_logits.py', 'test', 2)
    session = onnxruntime.InferenceSession('out.onnx')
    for image, probs in zip(batch['inputs'], actual, strict=False):
        (outputs,) = session.run(None, {'pixels': image.float().numpy()[None]})
        np.testing.assert_allclose(outputs[0, 1], probs[0], atol=1e-5)


def probabilities(sample):
    """Return the probabilities of a sample's sigmoids, ``(L,)`` or ``(1, H, W)``."""
    scores = sample['seg_logits']['data'] if 'seg_logits' in sample else sample['pred_score']
    return scores.numpy()
