"""Our scalers and published packages, side by side, on the same logits.

    pip install probmetrics netcal betacal  # in an environment of their own
    python tools/benchmarks/scalers.py --data 2 10 100 1000 digits

For each it prints the NLL of the data that it was fitted on and of 5000 others, ours, theirs and
the ratio. Labels are drawn from a scale and a shift of each class; digits are those of
scikit-learn, with noise, and the logits those of a small network that has over-fitted. The
packages get the probabilities, as they ask for. `SVS here` and `SMS here` are theirs from the
logits that ours start from: the mean is taken away, and they are divided by our temperature.
"""

import argparse
import time
import warnings

import numpy as np
import torch
from scipy.special import log_softmax, softmax

from mmcalib.posthoc import SCALERS, TemperatureScaler

HELD_OUT = 5000
TINY = np.finfo('f4').tiny


def draw(count, num_classes, seed):
    """Return logits that are 2.5 times too large, and labels of a map of each class."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(7)
    logits = rng.normal(size=(count, num_classes)) * 2
    scale, shift = fixed.uniform(0.6, 1.4, num_classes), fixed.normal(size=num_classes) / 2
    noise = rng.gumbel(size=logits.shape)
    return logits * 2.5, (logits * scale + shift + noise).argmax(axis=1)


def digits(count):
    """Return logits and labels of digits with noise, to fit on, and others."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    images, labels = (images + 6 * rng.normal(size=images.shape))[order] / 16, labels[order]
    network = MLPClassifier((64,), max_iter=300, alpha=0, random_state=0)
    network.fit(images[:500], labels[:500])
    network.out_activation_ = 'identity'
    logits = network._forward_pass_fast(images[500:], check_input=False)
    return (logits[:count], labels[500:][:count]), (logits[count:], labels[500:][count:])


def nll(probs, labels):
    return -np.log(np.maximum(probs[np.arange(len(labels)), labels], TINY)).mean()


def odds(logits):
    return logits[:, 1] - logits[:, 0]


def both(positive):
    return np.stack([1 - positive, positive], axis=1)


def of_probmetrics(name, **options):
    """Return a function that fits one of its calibrators."""

    def fit(logits, labels):
        from probmetrics.calibrators import ETSCalibrator, get_calibrator

        fitted = ETSCalibrator(**options) if name == 'ets' else get_calibrator(name)
        fitted.fit(softmax(logits, axis=1).astype('f4'), labels)
        return lambda z: fitted.predict_proba(softmax(z, axis=1).astype('f4'))

    return fit


def from_our_logits(name):
    """Return a function that gives SVS or SMS the logits that ours starts from."""

    def fit(logits, labels):
        from probmetrics.calibrators import get_calibrator

        theirs, (count, size) = get_calibrator(name), logits.shape
        temperature = TemperatureScaler().fit(logits, labels).temperature_

        def start(z):
            return (z - z.mean(axis=1, keepdims=True)) / temperature

        strength = dict(reg_intercept=size / count, reg_diagonal=size / count)
        if name == 'sms':
            strength['reg_off_diagonal'] = size * (size - 1) / count
        found = theirs._fit_bfgs(
            torch.as_tensor(start(logits)), torch.as_tensor(labels), num_classes=size, **strength
        )
        if name == 'svs':
            return lambda z: softmax(start(z) * found[0] + found[1], axis=1)
        return lambda z: softmax(start(z) @ found[:, :-1].T + found[:, -1], axis=1)

    return fit


def of_netcal(logits, labels):
    from netcal.scaling import TemperatureScaling

    theirs = TemperatureScaling()
    theirs.fit(softmax(logits, axis=1), labels)

    def predict(z):
        probs = theirs.transform(softmax(z, axis=1))
        return both(probs.ravel()) if probs.size == len(z) else probs

    return predict


def of_isotonic_regression(logits, labels):
    """Of the confidence after our temperature, in our bounds; the argmax may change."""
    from sklearn.isotonic import IsotonicRegression

    temperature = TemperatureScaler().fit(logits, labels).temperature_
    least = 1 / (len(labels) + 2)
    curve = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds='clip')
    curve.fit(softmax(logits / temperature, axis=1).max(axis=1), logits.argmax(axis=1) == labels)

    def predict(z):
        log_probs = log_softmax(z / temperature, axis=1)
        best = np.eye(z.shape[1], dtype=bool)[z.argmax(axis=1)]
        conf = curve.predict(np.exp(log_probs.max(axis=1)))[:, None]
        others = softmax(np.where(best, -np.inf, log_probs), axis=1)
        return np.where(best, conf, (1 - conf) * others)

    return predict


def of_sigmoid_calibration(logits, labels):
    from sklearn.calibration import _SigmoidCalibration

    theirs = _SigmoidCalibration().fit(odds(logits), labels)
    return lambda z: both(theirs.predict(odds(z)))


def of_betacal(logits, labels):
    from betacal import BetaCalibration

    theirs = BetaCalibration('abm').fit(softmax(logits, axis=1)[:, 1:], labels)
    return lambda z: both(theirs.predict(softmax(z, axis=1)[:, 1:]))


REFERENCES = [
    ('temperature', 'probmetrics', of_probmetrics('temp-scaling')),
    ('temperature', 'netcal', of_netcal),
    ('vector', 'SVS', of_probmetrics('svs')),
    ('vector', 'SVS here', from_our_logits('svs')),
    ('matrix', 'SMS', of_probmetrics('sms')),
    ('matrix', 'SMS here', from_our_logits('sms')),
    ('ets', 'probmetrics', of_probmetrics('ets', loss='ce')),
    ('isotonic', 'scikit-learn', of_isotonic_regression),
    ('platt', 'scikit-learn', of_sigmoid_calibration),
    ('beta', 'betacal', of_betacal),
]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--data', nargs='*', default=['2', '10', '100', 'digits'])
    parser.add_argument('--counts', type=int, nargs='*', default=[500, 5000])
    parser.add_argument('--methods', nargs='*', default=list(SCALERS), choices=list(SCALERS))
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    data = {}
    for name in args.data:
        if name == 'digits':
            data[name, 500] = digits(500)
            continue
        for count in args.counts:
            data[name, count] = draw(count, int(name), 0), draw(HELD_OUT, int(name), 1)
    print('| K | N | method | reference | fitted: ours | theirs | ratio | others: ours | theirs |'
          ' ratio | seconds |')  # fmt: skip
    print('|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|')
    for (k, n), (fitted, others) in data.items():
        for method, reference, fit in REFERENCES:
            scaler = SCALERS[method]()
            if method not in args.methods or ('softmax' not in scaler.heads and k != '2'):
                continue
            start = time.perf_counter()
            scaler.fit(*fitted)
            middle = time.perf_counter()
            try:
                predict = fit(*fitted)
            except ImportError as error:
                print(f'| {k} | {n} | {method} | {reference}: {error} |')
                continue
            end = time.perf_counter()
            row = []
            for logits, labels in (fitted, others):
                ours, theirs = (
                    nll(scaler.predict_proba(logits), labels),
                    nll(predict(logits), labels),
                )
                row += [f'{ours:.4f}', f'{theirs:.4f}', f'{ours / theirs:.4f}']
            seconds = f'{middle - start:.1f} / {end - middle:.1f}'
            print('|', ' | '.join([k, str(n), method, reference, *row, seconds]), '|', flush=True)


if __name__ == '__main__':
    main()
