"""Fits of temperature, vector and matrix scaling to over-fitted logits, beside probmetrics.

    OMP_NUM_THREADS=1 python tools/benchmarks/fits.py
    OMP_NUM_THREADS=1 python tools/benchmarks/fits.py --rows 20000 --classes 10
    OMP_NUM_THREADS=1 python tools/benchmarks/fits.py --predictions FILE.npz OTHER.npz

A network learns a tenth of what it needs, from simulated classes of several kinds: mixtures of
Gaussians, mixtures of which a part of the labels is wrong, whose classes are rare, or resemble each
other in groups; labels that another network draws. Scalings are fitted to held-out rows. Each is
given the NLL of 20,000 new rows, less that of mmcalib's temperature, so less than 0 is better than
a temperature, and the CPU seconds of the faster of two fits. If probmetrics is installed, its
temperature, SVS and SMS are beside; they take log-probabilities.

With `--predictions` the logits are those of files instead: logarithms of their `predictions`, the
probabilities (N, K), beside `ground_truth`, the labels (N,). Half of the rows are new ones.
"""

import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import log_softmax, softmax

from mmcalib.cli.parser import ToolParser
from mmcalib.posthoc import MatrixScaler, TemperatureScaler, VectorScaler
from mmcalib.tables import TextTable

KINDS = ('mixture', 'wrong labels', 'rare classes', 'groups of classes', 'drawn labels')
DIMENSIONS = 32
CLUSTERS = 2
NEW_ROWS = 20_000
SCALERS = {'temperature': TemperatureScaler, 'vector': VectorScaler, 'matrix': MatrixScaler}
PEERS = {'temp-scaling': 'temperature', 'svs': 'SVS', 'sms': 'SMS'}


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('--rows', type=int, nargs='+', default=[1000, 20_000])
    parser.add_argument('--classes', type=int, nargs='+', default=[10, 100])
    parser.add_argument('--kinds', nargs='+', default=KINDS, choices=KINDS)
    parser.add_argument('--predictions', nargs='+', type=Path, metavar='FILE.npz', default=[])
    parser.add_argument('--epochs', type=int, default=60)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.predictions:
        data = [read_data(path, args.seed) for path in args.predictions]
    else:
        data = simulated_data(args)
    cells = []
    headings = None
    for name, (logits, labels), new_rows in data:
        for count in args.rows:
            if count > len(labels):
                continue
            results = fit_all(logits[:count], labels[:count], *new_rows)
            reference = results['temperature'][0]
            row = [name, f'{count}×{logits.shape[1]}', f'{reference:.4f}']
            for nll, seconds in results.values():
                row.append(f'{nll - reference:+.4f}, {seconds:.3f} s')
            cells.append(row)
            headings = ['classes', 'rows', 'NLL of a temperature', *results]
    print(TextTable(headings, cells, alignment='ll' + 'r' * (len(headings) - 2)).write('markdown'))


def simulated_data(args):
    """Yield a name, logits and labels to fit to, and new ones, of each kind of classes."""
    for num_classes in args.classes:
        for kind in args.kinds:
            network, draw = train_network(kind, num_classes, args.epochs, args.seed)
            inputs, labels = draw(max(args.rows), stream=1)
            new_inputs, new_labels = draw(NEW_ROWS, stream=2)
            yield kind, (network(inputs), labels), (network(new_inputs), new_labels)


def read_data(path, seed):
    """Return the name of a file, half of its logits and labels to fit to, and the others."""
    with np.load(path) as content:
        logits = np.log(content['predictions'])
        labels = content['ground_truth']
    order = np.random.default_rng(seed).permutation(len(labels))
    half = len(order) // 2
    fitted = order[:half]
    new = order[half:]
    return path.stem, (logits[fitted], labels[fitted]), (logits[new], labels[new])


def train_network(kind, num_classes, epochs, seed):
    """Return an over-fitted network, and a function that draws inputs and labels of its classes."""
    world = np.random.default_rng([seed, KINDS.index(kind)])
    spread = 0.55 if num_classes <= 10 else 0.75
    centres = spread * world.normal(size=(num_classes, CLUSTERS, DIMENSIONS))
    if kind == 'groups of classes':
        group_centres = 0.9 * world.normal(size=(max(num_classes // 10, 4), 1, DIMENSIONS))
        centres = 0.6 * centres + group_centres[np.arange(num_classes) % len(group_centres)]
    first_layer = 2 * world.normal(size=(DIMENSIONS, 64)) / DIMENSIONS**0.5
    second_layer = world.normal(size=(64, num_classes)) / 2
    share = np.ones(num_classes)
    if kind == 'rare classes':
        share = 1 / np.arange(1, num_classes + 1)
    share = share / share.sum()

    def draw(count, stream):
        rng = np.random.default_rng([seed, KINDS.index(kind), stream])
        if kind == 'drawn labels':
            inputs = rng.normal(size=(count, DIMENSIONS))
            scores = np.tanh(inputs @ first_layer) @ second_layer
            labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
            return torch.tensor(inputs, dtype=torch.float32), labels
        labels = rng.choice(num_classes, size=count, p=share)
        cluster = rng.integers(CLUSTERS, size=count)
        inputs = centres[labels, cluster] + rng.normal(size=(count, DIMENSIONS))
        if kind == 'wrong labels':
            is_wrong = rng.random(count) < 0.15
            labels = np.where(is_wrong, rng.integers(num_classes, size=count), labels)
        return torch.tensor(inputs, dtype=torch.float32), labels

    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Linear(DIMENSIONS, 256), torch.nn.ReLU(), torch.nn.Linear(256, num_classes)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, labels = draw(1000 if num_classes <= 10 else 4000, stream=0)
    labels = torch.from_numpy(labels)
    for _ in range(epochs):
        for index in torch.randperm(len(labels)).split(128):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs[index]), labels[index]).backward()
            optimizer.step()

    def predict(inputs):
        with torch.inference_mode():
            return network(inputs).numpy()

    return predict, draw


def fit_all(logits, labels, new_logits, new_labels):
    """Return the NLL of the new rows and the CPU seconds of each fit, by its scaling."""
    results = {}
    for name, scaler_class in SCALERS.items():
        scaler, seconds = timed_fit(scaler_class, logits, labels)
        log_probs = log_softmax(scaler.transform(new_logits.astype(np.float64)), axis=1)
        results[name] = (mean_nll(log_probs, new_labels), seconds)
    try:
        from probmetrics.calibrators import get_calibrator
    except ImportError:
        return results
    probs = softmax(logits.astype(np.float64), axis=1)
    new_probs = softmax(new_logits.astype(np.float64), axis=1)
    for peer, title in PEERS.items():
        calibrator, seconds = timed_fit(partial(get_calibrator, peer), probs, labels)
        calibrated = np.log(np.clip(calibrator.predict_proba(new_probs), 1e-300, None))
        results[f'probmetrics: {title}'] = (mean_nll(calibrated, new_labels), seconds)
    return results


def timed_fit(new_scaler, *data):
    """Return a fitted scaler, and the CPU seconds of the faster of two fits."""
    best = float('inf')
    for _ in range(2):  # The first one of a process also loads code.
        scaler = new_scaler()
        start = time.process_time()
        scaler.fit(*data)
        best = min(best, time.process_time() - start)
    return scaler, best


def mean_nll(log_probs, labels):
    """Return the mean NLL, in nats."""
    return -log_probs[np.arange(len(labels)), labels].mean()


if __name__ == '__main__':
    warnings.simplefilter('ignore', FutureWarning)  # probmetrics gives some
    main()
