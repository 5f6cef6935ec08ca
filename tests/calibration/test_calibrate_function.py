"""The figures of ``mmcalib.calibrate`` for any torch model, and the scaling that it fits."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from overconfident_networks import SHAPES, make_data, make_loader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, TemperatureScaler


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(
    ('kind', 'method'),
    [
        *(('classifier', name) for name in ('temperature', 'vector', 'matrix', 'ets', 'isotonic')),
        ('segmentor', 'temperature'),
        ('segmentor', 'matrix'),
        ('segmentor', 'isotonic'),
        ('volume', 'vector'),
        ('volume', 'ets'),
    ],
)
def test_calibrate_method_predicts_scaled_probabilities(kind, method):
    network, inputs, labels = make_data(SHAPES[kind], num_images=240)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    with torch.no_grad():
        logits = network(inputs)
        actual = calibrated.model(inputs).softmax(dim=1)
    image_index = torch.arange(240).repeat_interleave(labels[0].numel())
    rows = logits.movedim(1, -1).flatten(0, -2)
    scaler = SCALERS[method]().fit(rows, labels.flatten(), image_index)
    expected = scaler.predict_proba(logits)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    if method in ('ets', 'isotonic'):
        assert calibrated.folded_into == []
        assert calibrated.attached
    else:
        assert calibrated.folded_into == ['fc']
        assert calibrated.attached is None
    assert calibrated.difference < 1e-4
    assert calibrated.after['NLL'] < calibrated.before['NLL']
    num_changed = int((actual.argmax(dim=1) != logits.argmax(dim=1)).sum())
    assert calibrated.changed == num_changed
    sentence = f'{num_changed:,} of {labels.numel():,} predicted classes change.'
    assert sentence in str(calibrated)


@pytest.mark.filterwarnings('ignore::FutureWarning', 'ignore::DeprecationWarning')
def test_calibrate_scripted_model_is_attached():
    network, inputs, labels = make_data()
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(torch.jit.trace(network, inputs[:2]), loader)
    assert calibrated.attached
    expected = mmcalib.calibrate(network, loader)
    assert calibrated.after['NLL'] == pytest.approx(expected.after['NLL'], abs=1e-4)


@pytest.mark.parametrize('kind', SHAPES)
def test_calibrate_figures_before_equal_measure(kind):
    network, inputs, labels = make_data(SHAPES[kind], num_images=240)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels))
    with torch.no_grad():
        probs = network(inputs).softmax(dim=1)
    expected = mmcalib.metrics.measure(probs, labels, ['ECE', 'NLL', 'Brier', 'accuracy'])
    actual = {name: calibrated.before[name] for name in expected}
    assert actual == pytest.approx(expected, rel=1e-4)
    assert 0 < calibrated.errors['after']['ECE'] < 10
    assert calibrated.num_predictions == labels.numel()
    assert re.search(r'before +[\d.]+ ± .*\nafter ', str(calibrated))


@pytest.mark.parametrize('kind', SHAPES)
def test_calibrate_temperature_standard_error_equals_scaler(kind):
    network, inputs, labels = make_data(SHAPES[kind], num_images=400)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels))
    with torch.no_grad():
        rows = network(inputs).movedim(1, -1).flatten(0, -2)
    image_index = torch.arange(400).repeat_interleave(labels[0].numel())
    unit = 'predictions' if kind == 'classifier' else 'images'
    expected = calibrated.scaler.standard_error(rows, labels.flatten(), image_index)
    assert calibrated.standard_error == pytest.approx(expected, rel=1e-4)
    assert f' ± {expected:.2g} (standard error over 400 {unit}), fitted' in str(calibrated)


def test_calibrate_groups_figures_equal_loop_over_folds():
    """Figures are cross-fitted by folds of groups, which come in their order."""
    network, inputs, labels = make_data(num_images=80)
    groups = [f'scan {index // 4}' for index in range(80)]
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), groups=groups)
    with torch.no_grad():
        logits = network(inputs)
    fold_of_group = torch.from_numpy(np.random.RandomState(0).permutation(20) % 5)
    fold = fold_of_group.repeat_interleave(4)
    scaled = torch.empty_like(logits)
    for index in range(5):
        is_in_fold = fold == index
        scaler = TemperatureScaler().fit(logits[~is_in_fold], labels[~is_in_fold])
        scaled[is_in_fold] = scaler.transform(logits[is_in_fold])
    nll = nn.functional.cross_entropy(scaled, labels, reduction='none').double()
    nll_by_group = nll.view(20, 4).mean(dim=1)
    expected_error = nll_by_group.std().item() / 20**0.5
    assert calibrated.after['NLL'] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert calibrated.errors['after']['NLL'] == pytest.approx(expected_error, rel=0.2)
    assert calibrated.num_groups == 20


@pytest.mark.parametrize('method', ['temperature', 'vector', 'isotonic'])
@pytest.mark.parametrize('kind', ['classifier', 'segmentor'])
def test_calibrate_shuffled_loader_same_figures(kind, method, monkeypatch):
    monkeypatch.setattr('mmcalib.calibration.draw.NUM_SAMPLES', 500)
    network, inputs, labels = make_data(SHAPES[kind])
    expected = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        loader = make_loader(inputs, labels, shuffle=True, generator=generator)
        actual = mmcalib.calibrate(network, loader, method=method)
        # The folds of maps are runs of their order, which a loader that shuffles does not have.
        names = expected.after if kind == 'classifier' else ['NLL', 'accuracy']
        tolerance = 1e-4 if kind == 'classifier' else 0.05
        for name in names:
            assert actual.after[name] == pytest.approx(expected.after[name], rel=tolerance)
        for name, value in expected.scaler.tensors.items():
            torch.testing.assert_close(actual.scaler.tensors[name], value, rtol=1e-4, atol=1e-5)


def test_calibrate_dicts_as_batches_same_figures():
    network, inputs, labels = make_data()
    loader = make_loader(inputs, labels)
    batches = [{'x': x, 'labels': y} for x, y in loader]
    expected = mmcalib.calibrate(network, loader)
    assert mmcalib.calibrate(network, batches).after == expected.after
    assert mmcalib.calibrate(network, iter(batches)).after == expected.after


def test_calibrate_scaler_with_options_uses_them():
    """The temperatures of this grid are multiples of 0.1."""
    network, inputs, labels = make_data()
    scaler = TemperatureScaler(criterion='ece-grid')
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=scaler)
    actual = 10 * calibrated.scaler.temperature_
    assert actual == pytest.approx(round(actual))


@pytest.mark.parametrize('shape', [(), (6, 7)])
def test_calibrate_ignored_labels_same_as_without_images(shape):
    network, inputs, labels = make_data(shape)
    labels[::3] = -100
    actual = mmcalib.calibrate(network, make_loader(inputs, labels), ignore_index=-100)
    is_kept = torch.arange(60) % 3 != 0
    expected = mmcalib.calibrate(network, make_loader(inputs[is_kept], labels[is_kept]))
    assert actual.num_predictions == int((labels >= 0).sum())
    assert actual.num_groups == 40
    assert actual.after == pytest.approx(expected.after)


@pytest.mark.parametrize('num_labels', [1, 3])
@pytest.mark.parametrize('method', ['temperature', 'vector', 'platt', 'isotonic'])
def test_calibrate_sigmoids_equal_scaler_of_each(method, num_labels):
    network, inputs, labels = make_data(num_images=150, num_logits=num_labels, sigmoids=True)
    labels[5, -1] = -1
    loader_labels = labels if num_labels > 1 else labels[:, 0].float()
    loader = make_loader(inputs, loader_labels)
    calibrated = mmcalib.calibrate(network, loader, method=method, ignore_index=-1)
    with torch.no_grad():
        logits = network(inputs)
        actual = calibrated.model(inputs).sigmoid()
    for index in range(num_labels):
        is_valid = labels[:, index] >= 0
        scaler = SCALERS[method]().fit(logits[is_valid, index, None], labels[is_valid, index])
        expected = scaler.predict_proba(logits[:, index, None])[:, 1]
        torch.testing.assert_close(actual[:, index], expected, rtol=1e-3, atol=1e-4)
    expected_layers = [] if method == 'isotonic' else ['fc']
    assert calibrated.folded_into == expected_layers
    assert calibrated.num_predictions == 150 * num_labels - 1
    assert calibrated.after['NLL'] < calibrated.before['NLL']


def test_calibrate_several_labels_standard_errors_are_those_of_each():
    network, inputs, labels = make_data(num_images=150, num_logits=3, sigmoids=True)
    labels[5, 0] = -1
    labels[:, 1] = 0
    groups = [index // 5 for index in range(150)]
    calibrated = mmcalib.calibrate(
        network,
        make_loader(inputs, labels),
        method='temperature',
        groups=groups,
        ignore_index=-1,
    )
    with torch.no_grad():
        logits = network(inputs)
    errors = calibrated.to_dict()['standard_errors']
    assert errors[1] is None  # It takes the scaling of all labels together.
    for index in (0, 2):
        is_valid = labels[:, index] >= 0
        rows = (
            logits[is_valid, index, None],
            labels[is_valid, index],
            torch.tensor(groups)[is_valid],
        )
        expected = SCALERS['temperature']().fit(*rows).standard_error(*rows)
        assert errors[index] == pytest.approx(expected, rel=1e-3)
        temperature = calibrated.scaler.scalers[index].temperature_
        factor = math.exp(expected / temperature)  # The errors are large.
        interval = f'[{temperature / factor:.2g}, {temperature * factor:.2g}]'
        assert f'{temperature:.4g} {interval}\n' in str(calibrated)


def test_calibrate_several_labels_batches_of_one_same_figures():
    """Labels of a batch of one image may look one-hot, and still are several."""
    network, inputs, labels = make_data(num_images=150, num_logits=3, sigmoids=True)
    actual = mmcalib.calibrate(network, make_loader(inputs, labels, batch_size=1))
    expected = mmcalib.calibrate(network, make_loader(inputs, labels, batch_size=150))
    assert actual.after == pytest.approx(expected.after, rel=1e-4)


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', ['temperature', 'vector', 'platt', 'isotonic'])
def test_calibrate_rare_labels_share_scaling(method):
    network, inputs, labels = make_data(num_images=150, num_logits=12, sigmoids=True)
    labels[:, :3] = 0
    labels[0, 1] = 1
    labels[: 7 * 21 : 7, 2] = 1
    labels[:, 3] = 1
    # Nothing in its logits tells of label 2, so that its own Platt's map would be reversed.
    shared_labels = [0, 1, 2, 3] if method == 'platt' else [0, 1, 3]
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    with torch.no_grad():
        logits = network(inputs)
        actual = calibrated.model(inputs).sigmoid()
    image_index = torch.arange(150).repeat_interleave(12)
    shared = SCALERS[method]().fit(logits.reshape(-1, 1), labels.flatten(), image_index)
    for index in range(12):
        scaler = shared
        if index not in shared_labels:
            scaler = SCALERS[method]().fit(logits[:, index, None], labels[:, index])
        expected = scaler.predict_proba(logits[:, index, None])[:, 1]
        torch.testing.assert_close(actual[:, index], expected, rtol=1e-3, atol=1e-4)
    assert calibrated.scaler.shared_labels == shared_labels
    names = ', '.join(map(str, shared_labels))
    assert re.search(rf'[Ll]abels {names}\b.* all labels', str(calibrated))
    assert calibrated.after['NLL'] < calibrated.before['NLL']


def test_calibrate_auto_overconfident_chooses_temperature():
    network, inputs, labels = make_data(num_images=2000)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='auto')
    methods = [candidate['method'] for candidate in calibrated.candidates]
    assert methods[:2] == ['none', 'temperature']
    assert calibrated.method == 'temperature'
    assert calibrated.folded_into == ['fc']


class Questions(nn.Module):
    """Answers questions of three to five choices, and masks the choices that are not there."""

    def __init__(self, mask):
        super().__init__()
        self.fc = nn.Linear(5, 5)
        nn.init.eye_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        self.mask = mask

    def forward(self, features, counts):
        is_masked = torch.arange(5) >= counts[:, None]
        return self.fc(features).masked_fill(is_masked, self.mask)


def question_batches(num_batches=8):
    """Return batches of questions, whose logits are three times too large."""
    generator = torch.Generator().manual_seed(4)
    features = 3 * torch.randn(100 * num_batches, 5, generator=generator)
    counts = torch.randint(3, 6, (len(features),), generator=generator)
    probs = (Questions(-torch.inf)(features, counts) / 3).softmax(dim=1).detach()
    # Every PyTorch draws the same numbers; their multinomial() differs.
    drawn = torch.rand(len(features), 1, generator=generator)
    labels = (drawn > probs.cumsum(dim=1)).sum(dim=1)
    parts = [values.split(100) for values in (features, counts, labels)]
    return [((x, count), label) for x, count, label in zip(*parts, strict=True)]


MASKS = [-1e9, torch.finfo(torch.float32).min, -torch.inf]


@pytest.mark.parametrize('mask', MASKS)
def test_calibrate_classes_masked_in_some_rows_folds_temperature(mask):
    batches = question_batches()
    calibrated = mmcalib.calibrate(Questions(mask), batches)
    assert calibrated.folded_into == ['fc']
    assert calibrated.scaler.temperature_ == pytest.approx(3, rel=0.15)
    losses = []
    for inputs, labels in batches:
        logits = Questions(-torch.inf)(*inputs) / calibrated.scaler.temperature_
        losses.append(nn.functional.cross_entropy(logits, labels).item())
    metrics = ['NLL', 'ECE', 'AECE', 'Brier', 'AUROC', 'AURC', 'temperature', 'ClasswiseECE']
    measured = mmcalib.evaluate(calibrated.model, batches, metrics)
    assert measured['NLL'] == pytest.approx(np.mean(losses), abs=1e-4)
    assert measured['temperature'] == pytest.approx(1, abs=1e-3)
    expected = mmcalib.evaluate(calibrated.model, batches, metrics, logits=without_infinity)
    assert measured == pytest.approx(expected)
    assert calibrated.after['NLL'] == pytest.approx(np.mean(losses), abs=0.01)
    shuffled = [batches[index] for index in (3, 1, 0, 2, 7, 6, 4, 5)]
    again = mmcalib.calibrate(Questions(mask), shuffled)
    assert again.after == pytest.approx(calibrated.after, rel=1e-6)


def without_infinity(output):
    return output.clamp(min=-1e9)


@pytest.mark.parametrize('mask', MASKS)
@pytest.mark.parametrize('method', ['vector', 'matrix', 'class-conditional'])
def test_calibrate_classes_masked_in_some_rows_refuses_first_batch(method, mask):
    batches = question_batches()
    read = []

    def loader():
        for batch in batches:
            read.append(batch)
            yield batch

    message = f'masked in .* of 100 predictions.* {method} scaling .*take a temperature'
    with pytest.raises(UserError, match=message):
        mmcalib.calibrate(Questions(mask), loader(), method=method)
    assert len(read) == 1


@pytest.mark.parametrize('mask', MASKS)
def test_calibrate_auto_classes_masked_in_some_rows_takes_temperature(mask):
    calibrated = mmcalib.calibrate(Questions(mask), question_batches(), method='auto')
    assert calibrated.method == 'temperature'
    problems = {row['method']: row['problem'] for row in calibrated.candidates}
    assert 'are masked' in problems['vector'] and 'are masked' in problems['matrix']
    assert problems['temperature'] is None


def test_calibrate_label_of_masked_class_raises():
    (inputs, labels), *batches = question_batches()
    labels[:] = 4
    num_masked = int((inputs[1] < 5).sum())
    message = f'-inf for {num_masked} of 100 labels: mask no class'
    with pytest.raises(UserError, match=message):
        mmcalib.calibrate(Questions(-torch.inf), [(inputs, labels), *batches])


@pytest.mark.parametrize('mask', [-1e4, torch.finfo(torch.float32).min])
def test_calibrate_auto_masked_class_chooses_among_methods_that_take_it(mask):
    network, inputs, labels = make_data(num_images=240)
    masked = nn.Sequential(network, nn.ConstantPad1d((0, 1), mask))
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(masked, loader, method='auto')
    expected = mmcalib.calibrate(network, loader, method='temperature')
    assert calibrated.method == 'temperature'
    assert calibrated.scaler.temperature_ == pytest.approx(expected.scaler.temperature_)
    problems = {row['method']: row['problem'] for row in calibrated.candidates}
    for method in ('vector', 'matrix'):
        assert 'is masked' in problems[method]
        with pytest.raises(UserError, match=r'is masked.*take a temperature'):
            mmcalib.calibrate(masked, loader, method=method)
    assert problems['temperature'] is None


def test_calibrate_auto_calibrated_logits_chooses_none():
    network, inputs, labels = make_data(num_images=400)
    network.fc.weight.data /= 3
    network.fc.bias.data /= 3
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='auto')
    assert calibrated.scaler is None
    assert calibrated.before == calibrated.after
    assert 'No scaling improves' in str(calibrated)


def test_calibrate_auto_worse_figures_are_in_text():
    network, inputs, labels = make_data(num_images=400)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='auto')
    worse_after = {**calibrated.after, 'NLL': 9.0, 'accuracy': 10.0}
    effect = replace(calibrated.effects['fitted'], after=worse_after)
    worse = replace(calibrated, effects={'fitted': effect})
    assert 'Worse' not in str(calibrated)
    assert re.search(r'Worse.* NLL .* 9.*accuracy .* 10', str(worse))


@pytest.mark.parametrize('true_temperature', [0.6, 1.0, 1.1, 1.5])
def test_calibrate_auto_few_groups_takes_temperature_above_one(true_temperature):
    """Few groups do not tell whether a temperature below 1 holds on others, so none is taken."""
    has_scaling = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(200, 4, generator=generator)
        probs = (logits / true_temperature).softmax(dim=1)
        labels = probs.multinomial(1, generator=generator)[:, 0]
        groups = [f'video {index // 40}' for index in range(200)]
        loader = make_loader(logits, labels)
        chosen = mmcalib.calibrate(nn.Identity(), loader, method='auto', groups=groups)
        fitted = mmcalib.calibrate(nn.Identity(), loader, groups=groups)
        temperature = fitted.scaler.temperature_
        num_errors = np.log(temperature) / (fitted.standard_error / temperature)
        assert (chosen.scaler is not None) == (num_errors > 2)
        has_scaling.append(chosen.scaler is not None)
    assert any(has_scaling) == (true_temperature > 1)
    assert all(has_scaling) == (true_temperature == 1.5)


@pytest.mark.parametrize('images_per_group', [1, 30])
def test_calibrate_auto_several_labels_text_says_what_is_compared(images_per_group):
    """A temperature of each label is chosen by its NLL, also below ten groups."""
    network, inputs, labels = make_data(num_images=150, num_logits=3, sigmoids=True)
    groups = [index // images_per_group for index in range(150)]
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(network, loader, method='auto', groups=groups)
    has_few_groups = images_per_group == 30
    assert ('Of fewer than ten groups' in str(calibrated)) == has_few_groups
    assert 'above 1 by two' not in str(calibrated)
    assert 'pooled over labels' in str(calibrated)


@pytest.mark.parametrize('factor', [1e-4, 1e4])
def test_calibrate_logits_of_another_scale_scale_temperature(factor):
    """Cosines have a best temperature below 0.01, though many predictions are wrong."""
    network, inputs, labels = make_data(num_images=240)
    loader = make_loader(inputs, labels)
    expected = mmcalib.calibrate(network, loader, groups=range(240))
    network.fc.weight.data *= factor
    network.fc.bias.data *= factor
    actual = mmcalib.calibrate(network, loader, groups=range(240))
    expected_temperature = factor * expected.scaler.temperature_
    assert actual.scaler.temperature_ == pytest.approx(expected_temperature, rel=1e-4)
    assert actual.after['NLL'] == pytest.approx(expected.after['NLL'], rel=1e-4)


def test_calibrate_random_labels_warns_or_raises():
    """The temperature of logits without information is high, and the text says why."""
    network, inputs, labels = make_data(num_images=300)
    num_fitted = 0
    for seed in range(6):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        loader = make_loader(inputs, labels[order])
        try:
            calibrated = mmcalib.calibrate(network, loader)
        except ValueError as error:
            assert 'no information' in str(error)
            continue
        num_fitted += 1
        assert calibrated.information < 2
        assert 'no information' in str(calibrated)
    assert num_fitted > 0


@pytest.mark.parametrize('groups', [None, np.arange(300) // 100])
def test_calibrate_labels_of_model_have_information(groups):
    network, inputs, labels = make_data(num_images=300)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), groups=groups)
    assert calibrated.information >= 2
    assert 'no information' not in str(calibrated)


def test_calibrate_class_without_labels_is_named():
    network, inputs, labels = make_data((6, 7))
    labels[labels == 2] = 255
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), ignore_index=255)
    assert calibrated.unlabelled == [2]
    assert re.search(r'No label is of class 2\b', str(calibrated))


def test_calibrate_all_classes_labelled_names_none():
    network, inputs, labels = make_data((6, 7))
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels))
    assert calibrated.unlabelled == []
    assert 'No label' not in str(calibrated)


GRAD_MODES = {'no_grad': torch.no_grad, 'inference_mode': torch.inference_mode}


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('mode', GRAD_MODES)
@pytest.mark.parametrize('method', ['vector', 'ets', 'auto'])
def test_calibrate_without_gradients_same_figures_and_can_be_trained(method, mode):
    network, inputs, labels = make_data(num_images=120)
    loader = make_loader(inputs, labels)
    expected = mmcalib.calibrate(network, loader, method=method)
    with GRAD_MODES[mode]():
        actual = mmcalib.calibrate(network, loader, method=method)
    assert actual.after == pytest.approx(expected.after)
    actual.model(inputs).sum().backward()
    assert next(actual.model.parameters()).grad is not None


def test_scaler_fit_inference_tensors_learns_the_same():
    network, inputs, labels = make_data(num_images=240)
    with torch.inference_mode():
        logits = network(inputs)
        inside = SCALERS['vector']().fit(logits, labels.clone())
    outside = SCALERS['vector']().fit(logits, labels)
    expected = SCALERS['vector']().fit(network(inputs).detach(), labels)
    torch.testing.assert_close(inside.tensors, expected.tensors)
    torch.testing.assert_close(outside.tensors, expected.tensors)


def test_calibrate_gap_that_a_temperature_leaves_is_said_and_isotonic_mends_it():
    torch.manual_seed(0)
    predicted = torch.randint(20, (2000,))
    logits = torch.randn(2000, 20)
    logits[torch.arange(2000), predicted] += 2 + 25 * torch.rand(2000)
    # Four in ten labels are drawn, however sure the logits are.
    labels = torch.where(torch.rand(2000) < 0.6, predicted, torch.randint(20, (2000,)))
    loader = DataLoader(TensorDataset(logits, labels), batch_size=500)
    sentence = r"still 1\d\.\d ± 1\.\d points below the accuracy.*method='isotonic'"
    temperature = mmcalib.calibrate(nn.Identity(), loader)
    assert re.search(sentence, str(temperature))
    isotonic = mmcalib.calibrate(nn.Identity(), loader, method='isotonic')
    assert 'The mean confidence is still' not in str(isotonic)
    assert isotonic.after['ECE'] < temperature.after['ECE'] / 5
    clean = DataLoader(TensorDataset(logits, logits.softmax(1).multinomial(1)[:, 0]), 500)
    assert 'The mean confidence is still' not in str(mmcalib.calibrate(nn.Identity(), clean))
