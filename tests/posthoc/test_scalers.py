"""What must hold of every scaling: the map by a loop, the optimum, shapes, files and models."""

import inspect
import itertools
import json
import warnings

import numpy as np
import pytest
import torch
from overconfident import draw, nll
from pretended_device import PretendedDevice, there
from scipy.special import expit, log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import isotonic_regression

from mmcalib.errors import UserError
from mmcalib.metrics import expected_calibration_error
from mmcalib.posthoc import SCALERS, fit_rows, load_scaler
from mmcalib.posthoc.attached import AttachedScaling, scaling_module

ALL = list(SCALERS)
TWO = ('platt', 'beta')
CASES = [(m, k) for m in ALL for k in (1, 2, 4) if k < 3 or m not in TWO]
KEEPING = [case for case in CASES if SCALERS[case[0]].keeps_argmax]
# Not the defaults, and all different.
OPTIONS = {
    'vector': dict(diagonal=2.0, intercept=0.5),
    'matrix': dict(diagonal=3.0, off_diagonal=0.7, intercept=0.4),
    'class-temperatures': dict(penalty=4.0),
    'class-conditional': dict(diagonal=5.0, off_diagonal=20.0, intercept=3.0),
}


def classes(name):
    return 2 if name in TWO else 4


def fit(name, *given, **options):
    return SCALERS[name](**options).fit(*given)


def fitted(name, k=None, **options):
    return fit(name, *draw(300, num_classes=k or classes(name)), **options)


def tensors(n, k):
    return map(torch.as_tensor, draw(n, num_classes=k))


def pair(z):
    """Logits of two classes or more."""
    return z if z.shape[1] > 1 else np.concatenate([np.zeros_like(z), z], axis=1)


# The maps, for one row of logits, with what was learned; a sigmoid's row is (0, z).


def of_one_class(z, temperature):
    c = z.argmax()
    return [(value - z[c]) / temperature[c] for value in z]


def of_gaps(z, matrix, shift):
    c, k = z.argmax(), range(len(z))
    rows = [sum(matrix[c][j][i] * (z[i] - z[c]) for i in k if i != c) - shift[c][j] for j in k]
    return [0 if j == c else rows[j] for j in k]


def of_curve(z, temperature, knots, errors):
    probs = softmax(z / temperature)
    c = z.argmax()
    rest = [p for j, p in enumerate(probs) if j != c]
    wrong = np.interp(np.log(probs[c] / sum(rest)), knots, errors)
    ratio = max(rest) / sum(rest)
    wrong = min(wrong, 1 / (1 + ratio) - 1e-6)
    scaled = [wrong * p / sum(rest) for p in probs]
    scaled[c] = 1 - wrong
    return np.log(scaled)


def of_odds(curve):
    return lambda z, **learned: [0, curve(z[1] - z[0], **learned)]


LOOPS = {
    'temperature': lambda z, temperature: z / temperature,
    'vector': lambda z, scale, shift: (z - z.mean()) * scale + shift,
    'matrix': lambda z, matrix, shift: (
        [row @ (z - z.mean()) for row in np.array(matrix)] + np.array(shift)
    ),
    'ets': lambda z, temperature, weights: np.log(
        np.array(weights) @ [softmax(z / temperature), softmax(z), np.full(len(z), 1 / len(z))]
    ),
    'isotonic': of_curve,
    'platt': of_odds(lambda z, scale, shift: scale * z + shift),
    'beta': of_odds(
        lambda z, rise, fall, shift: rise * np.log(expit(z)) - fall * np.log(expit(-z)) + shift
    ),
    'class-temperatures': of_one_class,
    'class-conditional': of_gaps,
}
_MATRIX = [[0.4, 0.1, 0, 0], [0.3, 0.3, 0.2, 0], [0, 0, 0.5, -0.2], [0.1, 0, 0, 0.4]]
# Of each predicted class, without its own row and column.
_CUBE = [
    [[0.0 if c in (i, j) else 0.3 + 0.1 * (i == j) + 0.05 * i for j in range(4)] for i in range(4)]
    for c in range(4)
]
# Something to have learned, of no symmetry.
LEARNED = {
    'temperature': dict(temperature=2.5),
    'vector': dict(scale=[0.2, 0.8, 0.4, 0.5], shift=[0.5, -0.5, 0.0, 0.2]),
    'matrix': dict(matrix=_MATRIX, shift=[0.5, -0.5, 0.0, 0.2]),
    'ets': dict(temperature=4.0, weights=[0.6, 0.25, 0.15]),
    'isotonic': dict(temperature=2.0, knots=[-0.5, 0.1, 1.5, 4.0], errors=[0.6, 0.45, 0.3, 0.1]),
    'platt': dict(scale=0.4, shift=0.7),
    'beta': dict(rise=0.2, fall=0.7, shift=0.2),
    'class-temperatures': dict(temperature=[1.0, 8.0, 2.0, 20.0]),
    'class-conditional': dict(
        matrix=_CUBE, shift=[[0, 2, 0.5, 1], [1, 0, 0, 0.3], [2, 0, 0, 0.5], [0, 0.4, 1, 0]]
    ),
}


@pytest.mark.parametrize('name', ALL)
class TestTheMap:
    def test_it_is_a_loop_s(self, name):
        given = SCALERS[name].from_parameters(LEARNED[name])
        z = np.random.default_rng(0).normal(size=(60, classes(name))) * 3
        expected = softmax([LOOPS[name](row, **LEARNED[name]) for row in z], axis=1)
        np.testing.assert_allclose(given.predict_proba(z), expected, atol=1e-12)
        scaled = given.transform(z)
        np.testing.assert_allclose(softmax(scaled, axis=1), expected, atol=1e-12)
        learned = {key: torch.as_tensor(v, dtype=torch.float64) for key, v in LEARNED[name].items()}
        found = given.apply(torch.as_tensor(z), **learned)
        np.testing.assert_allclose(found.numpy(), scaled, atol=1e-12)

    def test_a_sigmoid_s_logit_is_a_pair(self, name):
        scaler, new = fitted(name, 1), np.linspace(-9, 9, 40)[:, None]
        if name in ('vector', 'matrix'):  # of one class
            expected = scaler.parameters[next(iter(scaler.learned))]
            expected = pair(new * np.ravel(expected) + scaler.parameters['shift'])
        else:
            expected = [LOOPS[name](row, **scaler.parameters) for row in pair(new)]
        probs = scaler.predict_proba(new)
        np.testing.assert_allclose(probs, softmax(expected, axis=1), atol=1e-9)
        np.testing.assert_allclose(expit(scaler.transform(new))[:, 0], probs[:, 1], atol=1e-12)
        if name not in ('vector', 'matrix'):
            logits, labels = draw(300, num_classes=1)
            two = fit(name, pair(logits), labels).predict_proba(pair(new))
            np.testing.assert_allclose(two, probs, atol=1e-5)

    @pytest.mark.parametrize('shape', [(7,), (3, 5), (2, 3, 4)])
    def test_maps_and_volumes_are_rows(self, name, shape):
        k = classes(name)
        rows, labels = tensors(6 * int(np.prod(shape)), k)
        maps = rows.view(6, *shape, k).movedim(-1, 1)
        truth = labels.view(6, *shape).clone()
        truth[0, 0] = 255
        images = torch.arange(6).repeat_interleave(len(rows) // 6)
        valid = (truth != 255).flatten()
        found = SCALERS[name]().fit(maps, truth, ignore_index=255)
        expected = fit(name, rows[valid], labels[valid], images[valid])
        assert found.parameters == expected.parameters
        assert found.num_predictions_ == valid.sum()
        probs = found.predict_proba(maps)
        assert probs.shape == maps.shape
        torch.testing.assert_close(probs.movedim(1, -1).flatten(0, -2), found.predict_proba(rows))


# The optimum: what is minimised, from the definition.


def slopes(z, y, beta):
    probs = softmax(z * beta, axis=1)
    return (probs * z).sum(axis=1) - z[np.arange(len(y)), y]


def effective(s, groups):
    s = s - s.mean()
    sums = [s[groups == g].sum() for g in np.unique(groups)]
    return float(np.clip(len(s) * (s**2).sum() / np.square(sums).sum(), 1, len(s)))


def row_weights(name, z, y, groups, temperatures):
    weights, best = np.empty(len(y)), z.argmax(axis=1)
    part = best if name.startswith('class') else np.zeros_like(best)
    for c in np.unique(part):
        own = part == c
        s = slopes(z[own], y[own], 1 / temperatures[c])
        weights[own] = effective(s, groups[own]) / own.sum()
    return weights


def penalty(name, learned, t, o):
    """What speaks against what was learned, with the temperature of each predicted class."""
    k, scaled = len(t), {key: t[0] * value for key, value in learned.items()}
    shifts = o.get('intercept', 0) * np.square(learned.get('shift', 0)).sum()
    if name == 'vector':
        return k * (o['diagonal'] * np.square(scaled['scale'] - 1).sum() + shifts)
    if name == 'class-temperatures':
        return o['penalty'] * np.square(t[0] / learned['temperature'] - 1).sum()

    def of_matrix(change, off_diagonal):
        own = np.square(np.diag(change)).sum()
        return o['diagonal'] * own + off_diagonal * (np.square(change).sum() - own)

    if name == 'matrix':
        return k * (of_matrix(scaled['matrix'] - np.eye(k), o['off_diagonal'] * (k - 1)) + shifts)
    if name == 'class-conditional':
        for c in range(k):
            others = np.delete(np.arange(k), c)
            change = t[c] * learned['matrix'][c][np.ix_(others, others)] - np.eye(k - 1)
            shifts += of_matrix(change, o['off_diagonal'])
        return shifts
    return 0.0


LEAST_VALUES = dict(rise=0, fall=0, weights=0, temperature=0.01)


def near(name, learned):
    """What was learned with each number changed a little, as far as that is allowed."""
    for key, value in learned.items():
        if name in ('ets', 'isotonic') and key == 'temperature':
            continue
        for place in np.ndindex(value.shape):
            for step in (-0.004, 0.004):
                changed = {k: v.copy() for k, v in learned.items()}
                changed[key][place] += step
                if name == 'class-conditional':
                    if place[0] in place[1:]:
                        continue
                    changed[key][place] = max(changed[key][place], 0)
                changed[key] = np.maximum(changed[key], LEAST_VALUES.get(key, -np.inf))
                if key == 'weights':
                    changed[key] /= changed[key].sum()
                yield changed


@pytest.mark.parametrize('grouped', [False, True])
@pytest.mark.parametrize('name', [name for name in ALL if name != 'isotonic'])
def test_no_step_goes_lower(name, grouped):
    k = classes(name)
    z, y = draw(240, num_classes=k, seed=4)
    z = z + 0.7 * np.arange(k)  # so that classes differ
    groups = np.arange(240) // 6 if grouped else np.arange(240)
    if grouped:
        z, y = np.repeat(z[::2], 2, axis=0), np.repeat(y[::2], 2)  # which are not independent
    options = OPTIONS.get(name, {})
    scaler = fit(name, z, y, groups, **options)
    single = fit('temperature', z, y).temperature_
    t = [single] * k
    weights = row_weights(name, z, y, groups, t)
    if name == 'class-conditional':
        t = fit('class-temperatures', z, y, groups).temperature_.tolist()
        weights = row_weights(name, z, y, groups, t)
    assert grouped == (weights.min() < 0.9)
    assert name == 'temperature' or scaler.num_effective_ == pytest.approx(weights.sum())
    targets = np.eye(k)[y]
    if name == 'platt':
        right = y.mean() * weights.sum()
        wrong = weights.sum() - right
        p = np.where(y == 1, (right + 1) / (right + 2), 1 / (wrong + 2))
        targets = np.stack([1 - p, p], axis=1)

    def objective(learned):
        scaled = SCALERS[name].from_parameters(learned).transform(z)
        own = -(log_softmax(scaled, axis=1) * targets).sum(axis=1)
        return (weights * own).sum() + penalty(name, learned, t, options)

    learned = {key: np.array(v) for key, v in scaler.parameters.items()}
    least = objective(learned)
    worse = [objective(changed) - least for changed in near(name, learned)]
    assert min(worse) > -1e-6 and max(worse) > 1e-5


class TestIsotonic:
    def test_it_is_the_regression_of_scikit_learn(self):
        z, y = draw(400, num_classes=3)
        scaler = fit('isotonic', z, y)
        assert scaler.temperature_ == fit('temperature', z, y).temperature_
        probs = softmax(z / scaler.temperature_, axis=1)
        conf = probs.max(axis=1)
        order = conf.argsort()
        odds = np.log(conf / (1 - conf))[order]
        steps = isotonic_regression((z.argmax(axis=1) == y)[order].astype(float))
        expected = [(odds[steps == level].mean(), 1 - level) for level in np.unique(steps)]
        knots, errors = zip(*expected, strict=True)
        np.testing.assert_allclose(scaler.knots_, knots, atol=1e-9)
        least = 1 / 402
        np.testing.assert_allclose(scaler.errors_, np.clip(errors, least, 1 - least), atol=1e-9)

    def test_dependent_predictions_keep_away_from_0_and_1(self):
        z, y = (np.repeat(a, 9, axis=0) for a in draw(60, num_classes=2))
        grouped = fit('isotonic', z, y, np.arange(540) // 9)
        assert grouped.num_effective_ == pytest.approx(60, rel=1e-6)
        assert grouped.errors_.min() == pytest.approx(1 / 62)


class TestTemperature:
    def test_the_grid_of_the_paper(self):
        logits, labels = draw(300)
        grid = [k / 10 for k in range(1, 101)]
        errors = [expected_calibration_error(softmax(logits / t, axis=1), labels) for t in grid]
        found = [SCALERS['temperature'](criterion='ece-grid').fit(logits + 1e7, labels)]
        with PretendedDevice():
            given = there(torch.as_tensor(logits)), torch.as_tensor(labels)
            found.append(SCALERS['temperature'](criterion='ece-grid').fit(*given))
        for each in found:
            assert each.temperature_ == grid[np.argmin(errors)] and not each.at_bound_

    def test_standard_error(self):
        found = [fit('temperature', *draw(1000, seed=s)).temperature_ for s in range(30)]
        logits, labels = draw(1000)
        scaler = fit('temperature', logits, labels)
        single = scaler.standard_error(logits, labels)
        assert single == pytest.approx(np.std(found), rel=0.35)
        # Rows that come in copies are no more information than one of them.
        copies = [np.repeat(a, 4, axis=0) for a in (logits, labels)]
        groups = np.repeat(np.arange(1000), 4)
        assert scaler.standard_error(*copies, groups) == pytest.approx(single)
        assert scaler.standard_error(*copies) == pytest.approx(single / 2)

    @pytest.mark.parametrize(('sign', 'bound'), [(1, 0.01), (-1, 100)])
    def test_separable_logits_end_at_the_bound(self, sign, bound, tmp_path):
        labels = np.arange(40) % 4
        logits = sign * 3 * np.eye(4)[labels]
        with pytest.warns(UserWarning, match=f'bound of {bound}'):
            scaler = fit('temperature', logits, labels)
        scaler.save(tmp_path / 't.json')
        for each in (scaler, load_scaler(tmp_path / 't.json')):
            assert each.temperature_ == bound and each.at_bound_
            assert np.isnan(each.standard_error(logits, labels))

    @pytest.mark.parametrize('factor', [1e-5, 1e-3, 1e4])
    def test_logits_of_another_scale_have_a_temperature_of_that_scale(self, factor):
        """Such as cosines, whose differences are small, and sums of a thousand features."""
        logits, labels = draw(400)
        expected = fit('temperature', logits, labels).temperature_
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            for name in ('temperature', 'isotonic', 'class-temperatures'):
                scaler = fit(name, factor * logits, labels)
                found = torch.as_tensor(scaler.temperature_)
                other = torch.as_tensor(fit(name, logits, labels).temperature_)
                torch.testing.assert_close(found, factor * other, rtol=1e-4, atol=0)
        for groups in (None, np.arange(400) // 200):
            found = fit('temperature', factor * logits, labels, groups).temperature_
            assert found == pytest.approx(factor * expected, rel=1e-6)


@pytest.mark.parametrize(('name', 'k'), CASES)
class TestTheFit:
    def test_kinds(self, name, k):
        logits, labels = draw(200, num_classes=k)
        scaler = fit(name, logits.tolist(), labels.tolist())
        assert scaler.parameters == fit(name, torch.as_tensor(logits), labels).parameters
        assert (scaler.num_predictions_, scaler.num_logits_) == (200, k)
        expected = scaler.transform(logits)
        assert isinstance(expected, np.ndarray) and expected.dtype == np.float64
        np.testing.assert_array_equal(scaler.transform(logits.tolist()), expected)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            given = torch.as_tensor(logits).to(dtype)
            found = scaler.transform(given)
            wanted = scaler.transform(given.double()).to(torch.promote_types(dtype, torch.float32))
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        # Also a half is fitted in float64.
        assert fit(name, given, labels).parameters == fit(name, given.double(), labels).parameters
        assert nll(expected, labels) < nll(logits, labels) - 0.1
        assert scaler.predict_proba(logits[:0]).shape == (0, max(k, 2))

    def test_parts_are_the_whole(self, name, k, monkeypatch):
        logits, labels = draw(200, num_classes=k)
        groups = np.arange(200) // 4
        whole = fit(name, logits, labels, groups).transform(logits)
        monkeypatch.setattr(fit_rows, 'PART_VALUES', 7 * k)
        names = np.array([f'patient {99 - n}' for n in groups])
        found = fit(name, logits, labels, names).transform(logits)
        np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-4)

    def test_on_another_device(self, name, k):
        logits, labels = tensors(60, k)
        here = fit(name, logits, labels, torch.arange(60) // 2)
        with PretendedDevice():
            other = fit(name, there(logits), labels, torch.arange(60) // 2)
            found = here.transform(there(logits)), other.predict_proba(there(logits))
        torch.testing.assert_close(found[0].value, here.transform(logits))
        torch.testing.assert_close(found[1].value, here.predict_proba(logits), rtol=0, atol=1e-5)

    def test_what_a_softmax_ignores_changes_nothing(self, name, k):
        logits, labels = draw(300, num_classes=k)
        plain = fit(name, logits, labels)
        expected = plain.predict_proba(logits)
        if k == 1:
            assert np.abs(plain.predict_proba(logits + 1) - expected).max() > 0.05
            return
        for size in (1.0, 1e7):
            more = np.random.default_rng(1).normal(size=(len(logits), 1)) * size + size
            for each in (plain, fit(name, logits + more, labels)):
                np.testing.assert_allclose(each.predict_proba(logits + more), expected, atol=1e-6)
        single = torch.as_tensor(logits + 1e5).float()  # apart by steps of 0.008
        found, expected = (plain.predict_proba(z) for z in (single, single.double() - 1e5))
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)

    @pytest.mark.filterwarnings('ignore:the temperature reached its bound')
    def test_poor_data(self, name, k):
        labels = np.arange(40) % max(k, 2)
        logits = 3 * (2 * labels[:, None] - 1.0) if k == 1 else 3 * np.eye(k)[labels]
        noise = np.random.default_rng(0).normal(size=logits.shape) * 0.1
        new = torch.randn(50, k, dtype=torch.float64, generator=torch.manual_seed(0)) * 30
        for sign in (1, -1):
            scaler = fit(name, sign * logits + noise, labels)
            for values in (new, new.float(), new.half()):
                assert scaler.transform(values).isfinite().all()
                assert (scaler.predict_proba(values).sum(dim=1) - 1).abs().max() < 1e-5
            sure = np.take_along_axis(scaler.predict_proba(sign * logits), labels[:, None], 1)
            # Platt's scale may be negative.
            assert (sure.mean() > 0.8) == (sign == 1 or name == 'platt')
        if k == 4:  # a class that never occurs
            logits, labels = draw(200, num_classes=k)
            kept = labels != 2
            assert fit(name, logits[kept], labels[kept]).transform(new).isfinite().all()
        if name not in (*TWO, 'vector', 'matrix'):
            scaler = fit(name, logits, np.ones(len(logits), dtype=int))
            assert scaler.transform(new).isfinite().all()

    def test_a_fit_that_fails_and_gradients_leave_alone(self, name, k):
        logits, labels = tensors(60, k)
        logits.requires_grad_()
        scaler = fit(name, logits, labels)
        assert logits.grad is None
        before = scaler.parameters
        with pytest.raises(ValueError, match='all equal'):
            scaler.fit(np.zeros((12, k)), np.arange(12) % max(k, 2))
        assert scaler.parameters == before and scaler.num_predictions_ == 60
        scaler.transform(logits)[:, 0].sum().backward()
        assert logits.grad.abs().max() > 0
        new = logits.detach()[:3].clone()
        new[1] = float('nan')
        found = scaler.predict_proba(new)
        assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(('name', 'k'), KEEPING)
def test_the_predicted_class_is_kept(name, k, dtype):
    """Of logits with ties, differences of one step of their precision, and of all sizes."""
    z = torch.randn(400, k, 6, generator=torch.manual_seed(1), dtype=torch.float64)
    z[:100] = z[:100].round()
    z[100:200] *= 1e4
    if SCALERS[name].by_class:  # gaps keep their digits
        z[200:250] = 1.875 + torch.finfo(dtype).eps * z[200:250].round()
    z[250:270] *= 1e-3
    z = z.to(dtype)
    scaler, predicted = fitted(name, k), torch.as_tensor(pair(z.numpy())).argmax(dim=1)
    found = scaler.transform(z.double())
    assert scaler.keeps_argmax and found.isfinite().all()
    assert torch.equal(torch.as_tensor(pair(found.numpy())).argmax(dim=1), predicted)


@pytest.mark.parametrize('name', ['temperature', 'isotonic', 'beta', 'class-temperatures', 'platt'])
def test_the_order_of_two_classes_is_kept(name):
    scaled = fitted(name, 1).transform(np.linspace(-60, 60, 5001)[:, None])[:, 0]
    assert (np.diff(scaled) >= -1e-12).all() and scaled[-1] > scaled[0] + 2
    if name == 'platt':  # logits that mislead are followed
        logits, labels = draw(300, num_classes=1)
        with pytest.warns(UserWarning, match='almost no information'):
            assert fit('platt', -logits, labels).scale_ < 0


@pytest.mark.parametrize('name', ALL)
class TestKept:
    def test_a_file(self, name, tmp_path):
        options = OPTIONS.get(name, {})
        scaler = fitted(name, **options)
        new = clone(scaler)
        for ask in (
            lambda: new.predict_proba([[1.0, 2.0]]),
            lambda: new.save(tmp_path / 'no.json'),
        ):
            with pytest.raises(NotFittedError, match=f'{type(scaler).__name__} .*not fitted yet'):
                ask()
        scaler.save(tmp_path / 'scaler.json')
        content = json.loads((tmp_path / 'scaler.json').read_text())
        assert content['method'] == name and content['options'].items() >= options.items()
        again = load_scaler(tmp_path / 'scaler.json')
        assert type(again) is type(scaler)
        assert again.get_params() == scaler.get_params() == new.get_params()
        z = draw(50, num_classes=classes(name), seed=1)[0]
        np.testing.assert_array_equal(again.transform(z), scaler.transform(z))
        with pytest.raises(ValueError, match=r'fitted to|two classes'):
            again.predict_proba(np.zeros((5, classes(name) + 1)))

    @pytest.mark.parametrize('k', [1, 3])
    def test_probabilities_in_place_of_logits_are_warned_of(self, name, k):
        logits, labels = draw(200, num_classes=2 if name in TWO and k > 1 else k)
        probs = expit(logits) if k == 1 else softmax(logits, axis=1)
        scaler = fit(name, logits, labels)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            scaler.transform(logits), scaler.predict_proba(logits), scaler.transform(logits[:0])
            fit(name, log_softmax(pair(logits), axis=1), labels)
        for call in (
            lambda: scaler.transform(probs),
            lambda: scaler.predict_proba(torch.as_tensor(probs).half()),
            lambda: fit(name, probs, labels),
        ):
            with pytest.warns(UserWarning, match='look like probabilities') as said:
                call()
            assert __file__ in {warning.filename for warning in said}


class TestAttached:
    @pytest.mark.parametrize(('name', 'k'), CASES)
    def test_it_is_the_scaler_also_in_onnx(self, name, k, tmp_path):
        pytest.importorskip('onnx')
        runtime = pytest.importorskip('onnxruntime')
        rows, labels = tensors(480, k)
        maps, truth = rows.view(6, 8, 10, k).movedim(-1, 1).float(), labels.view(6, 8, 10)
        scaler = fit(name, maps, truth)
        module = scaling_module(scaler).eval()
        torch.testing.assert_close(module(maps), scaler.transform(maps), rtol=1e-5, atol=1e-5)
        assert module(maps.half()).dtype == torch.float32
        double, expected = module(maps.double()), scaler.transform(maps.double())
        torch.testing.assert_close(double, expected, rtol=1e-12, atol=1e-12)
        path = str(tmp_path / 'scaling.onnx')
        names = dict(input_names=['logits'], output_names=['scaled'])
        axes = dict(dynamic_axes={'logits': {0: 'n', 2: 'h', 3: 'w'}})
        if 'dynamo' in inspect.signature(torch.onnx.export).parameters:
            axes['dynamo'] = False  # PyTorch before 2.5 has this exporter alone
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.onnx.export(module, (maps[:2],), path, **names, **axes)
        session = runtime.InferenceSession(path, providers=['CPUExecutionProvider'])
        for part in (maps[:2], maps[:1, :, 1:, 2:], maps[:3, :, :5]):
            (found,) = session.run(None, {'logits': part.contiguous().numpy()})
            # Two roundings of a logit may lie on two sides of a step.
            close = (torch.as_tensor(found) - module(part)).abs() < 1e-4
            assert close.float().mean() > 0.995

    @pytest.mark.parametrize('there', ALL)
    def test_that_of_another_method_is_refused(self, there):
        state = scaling_module(fitted(there)).state_dict()
        older = {key: value for key, value in state.items() if key != 'about'}  # of version 0.3.0
        for here, given in itertools.product(ALL, (state, older)):
            module, same = AttachedScaling(here), SCALERS[here].learned == SCALERS[there].learned
            if here == there or (same and given is older):
                module.load_state_dict(given)
            else:
                why = 'learns' if given is older else 'method must be one of'
                with pytest.raises(UserError, match=rf'{why}.*tools/calibrate\.py wrote'):
                    module.load_state_dict(given, strict=False)

    def test_what_was_not_loaded_or_is_of_another_head_is_said(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), AttachedScaling('temperature'))
        with pytest.raises(UserError, match='its checkpoint holds none'):
            model(torch.zeros(2, 2))
        with pytest.raises(RuntimeError, match=r'1\.temperature'):
            model.load_state_dict({'0.weight': torch.eye(2), '0.bias': torch.zeros(2)})
        # Of version 0.3.0, whatever else is missing.
        model.load_state_dict({'1.temperature': torch.tensor(2.0)}, strict=False)
        assert torch.equal(model[1](torch.ones(1, 2)), torch.full((1, 2), 0.5))
        with pytest.raises(UserError, match='of 4 logits of a prediction, and the model has 3'):
            scaling_module(fitted('class-temperatures'))(torch.zeros(2, 3))


@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize('name', [name for name in ALL if 'sigmoid' in SCALERS[name].heads])
def test_a_bare_confidence(name, tmp_path):
    """Of which only is known when it was right: too sure, and too high."""
    odds, correct = draw(8000, num_classes=1)
    conf, correct = expit(odds[:, 0] + 0.8), correct == 1
    scaler = SCALERS[name]().fit_confidence(conf[::2], correct[::2])
    after = scaler.confidence(conf[1::2])
    kept = conf[1::2], after
    before, found = (expected_calibration_error(conf=c, correct=correct[1::2]) for c in kept)
    assert found < (4.5 if name in ('platt', 'beta', 'isotonic') else before) < before + 1
    scaler.save(tmp_path / 'scaler.json')
    assert np.array_equal(load_scaler(tmp_path / 'scaler.json').confidence(conf[1::2]), after)
    assert np.isfinite(scaler.confidence(np.array([0.0, 1.0]))).all()
    assert scaler.confidence(torch.as_tensor(conf).float()).dtype == torch.float32


Z, Y = draw(20, num_classes=3)
REFUSED = {
    'nothing': (lambda: fit('temperature', Z[:0], Y[:0]), 'nothing to fit'),
    'fewer labels': (lambda: fit('temperature', Z, Y[:5]), r'\(20, 3\) and \(5,\)'),
    'one axis': (lambda: fit('temperature', Z[:, 0], Y), r'must be .*\(20,\)'),
    'real labels': (lambda: fit('vector', Z, Y + 0.5), 'labels must be integers'),
    'labels above': (lambda: fit('matrix', Z, Y + 9), r'outside \[0, 3\).*ignore_index'),
    'NaN': (lambda: fit('isotonic', np.where(Z[2, 0] == Z, np.nan, Z), Y), '1 NaN'),
    'groups': (lambda: fit('vector', Z, Y, Y[:7]), r'groups must be \(20,\)'),
    'error groups': (lambda: fitted('temperature').standard_error(Z, Y, Y[:7]), 'groups must be'),
    'confidences': (lambda: SCALERS['platt']().fit_confidence([9.0, 0.5], [1, 0]), '1 of 2 values'),
    'three classes': (lambda: fit('platt', Z, Y), r'two classes.*\(20, 3\).*temperature'),
    **{
        f'one class, {name}': (lambda name=name: fit(name, Z[:, :2], 0 * Y + 1), 'class 1')
        for name in ('vector', 'matrix', *TWO)
    },
    'no bias': (lambda: fitted('vector').fold(torch.eye(4), None), 'no bias'),
    'criterion': (lambda: SCALERS['temperature'](criterion='ece'), "'ece'"),
    'learned': (lambda: SCALERS['vector'].from_parameters({'colour': 1.0}), 'learns .*colour'),
    'axes': (lambda: SCALERS['temperature'].from_parameters({'temperature': [1.0]}), 'learns'),
    'method': (lambda: AttachedScaling('colour'), r"method must be one of .* got 'colour'"),
    **{
        f'{name}: {key}={value}': (lambda n=name, k=key, v=value: SCALERS[n](**{k: v}), key)
        for name, options in OPTIONS.items()
        for key in options
        for value in (-1.0, float('inf'), True)
    },
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_refused(case):
    call, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize('way', ['set_params', 'attribute'])
@pytest.mark.parametrize(
    ('name', 'option', 'value'),
    [
        ('temperature', 'criterion', 'ece'),
        *((name, key, -1.0) for name, options in OPTIONS.items() for key in options),
    ],
)
def test_option_that_is_set_later_is_checked(name, option, value, way):
    scaler = SCALERS[name]()
    before = scaler.get_params()
    with pytest.raises(ValueError, match=option):
        if way == 'set_params':
            scaler.set_params(**{option: value})
        else:
            setattr(scaler, option, value)
    assert scaler.get_params() == before
    scaler.set_params(**before)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{', 'Expecting'),
        ('[]', 'list'),
        ('{"method": "platt"}', "lacks 'parameters'"),
        ('{"method": "venn-abers", "parameters": {}}', 'venn-abers'),
    ],
)
def test_a_file_that_is_none_of_a_scaler(content, message, tmp_path):
    path = tmp_path / 'scaler.json'
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_scaler(path)


def test_no_ensemble_is_of_equal_probabilities_alone():
    z = np.random.default_rng(0).normal(size=(400, 4)) * 5
    with pytest.warns(UserWarning, match='almost no information'):
        equal = fit('ets', z, z.argmin(axis=1))
    assert 0.98 < equal.weights_[2] <= 0.99 + 1e-9
    assert (equal.transform(z).argmax(axis=1) == z.argmax(axis=1)).all()
