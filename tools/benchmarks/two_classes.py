"""A temperature, Platt's map, and the choice between both, for networks that end in one sigmoid.

    python tools/benchmarks/two_classes.py --draws 200 --out FILE.json
    python tools/benchmarks/two_classes.py --peers

Each method is fitted to drawn held-out data and judged on fresh data, for networks of four kinds:
tables (endless simulated data), tables of six labels, embedded digits as one class against the
rest, and binary maps whose images differ from one another. Each network is trained plainly and with
`pos_weight`, which makes positives count as often as negatives. Two choices are compared: `choice`
takes a temperature unless the cross-validated NLL of Platt's map is lower by more than one standard
error, and `lower` takes the one of the lower NLL.

With `--peers`: one network, trained with `pos_weight=5`, before and after each calibration of
mmcalib and of scikit-learn's CalibratedClassifierCV, judged by mmcalib and by torchmetrics'
BinaryCalibrationError.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.classification import BinaryCalibrationError

import mmcalib
from mmcalib.calibration.cross_fit import fit_scaler
from mmcalib.posthoc import SCALERS
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.tables import TextTable

METHODS = ('none', 'temperature', 'platt', 'choice', 'lower')
RATES_OF_LABELS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
FOLDS = 5
POOL = 200_000
PIXELS_PER_IMAGE = 200


@dataclass
class Pool:
    """Logits and labels of a network that was trained on other data.

    Attributes:
        name: The data and how the network was trained.
        logits: ``(n, P)`` logits of P predictions of each of n images.
        labels: ``(n, P)`` of 0 and 1.
        sizes: The numbers of images to calibrate on.
        several_labels: Whether P are labels, each of which has a scaling of its own.
    """

    name: str
    logits: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    several_labels: bool = False


def train(inputs, labels, *, weighted, seed, hidden=64, steps=300):
    """Return an over-fitted network of one hidden layer and one sigmoid."""
    torch.manual_seed(seed)
    model = build_network(inputs.shape[1], hidden)
    pos_weight = (1 - labels).sum() / labels.sum() if weighted else torch.tensor(1.0)
    return train_network(model, inputs, labels, pos_weight, steps)


def build_network(num_inputs, hidden=64):
    """Return an untrained network of one hidden layer and one sigmoid."""
    return nn.Sequential(nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def train_network(model, inputs, labels, pos_weight, steps):
    """Return the network, trained on all rows at once."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(inputs)[:, 0]
        binary_cross_entropy_with_logits(logits, labels, pos_weight=pos_weight).backward()
        optimizer.step()
    return model.eval()


def table_pool(rate, *, weighted, seed=0):
    """Return predictions for rows of ten numbers, of which two classes overlap."""
    generator = torch.Generator().manual_seed(seed)

    def draw_rows(count):
        labels = (torch.rand(count, generator=generator) < rate).float()
        inputs = torch.randn(count, 10, generator=generator)
        inputs[:, :4] += 0.8 * labels[:, None]
        inputs[:, 4] *= 1 + labels
        return inputs, labels

    model = train(*draw_rows(1_000), weighted=weighted, seed=seed, steps=150)
    inputs, labels = draw_rows(POOL)
    with torch.no_grad():
        logits = model(inputs)
    name = f'table, {rate:.0%} positive{", pos_weight" if weighted else ""}'
    return Pool(name, logits, labels[:, None].long(), (100, 300, 1_000, 5_000, 20_000))


def labels_pool(*, weighted, seed=0):
    """Return predictions of six labels, each of a network and rows of its own."""
    pools = []
    for label, rate in enumerate(RATES_OF_LABELS):
        pools.append(table_pool(rate, weighted=weighted, seed=seed + label))
    return Pool(
        name=f'six labels{", pos_weight" if weighted else ""}',
        logits=torch.cat([pool.logits for pool in pools], dim=1),
        labels=torch.cat([pool.labels for pool in pools], dim=1),
        sizes=(300, 1_000, 5_000),
        several_labels=True,
    )


def digits_pool(rate, *, weighted, seed=0):
    """Return predictions for noisy digits: fives against the rest, thinned to a rate."""
    generator = torch.Generator().manual_seed(seed)
    images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float() / 8 + 1.5 * torch.randn(images.shape, generator=generator)
    labels = (digits == 5).float()
    positives = labels.nonzero()[:, 0]
    negatives = (labels == 0).nonzero()[:, 0]
    num_positives = len(positives)
    num_negatives = len(negatives)
    if rate < num_positives / len(labels):
        num_positives = round(rate / (1 - rate) * num_negatives)
    else:
        num_negatives = round((1 - rate) / rate * num_positives)
    positives = positives[torch.randperm(len(positives), generator=generator)[:num_positives]]
    negatives = negatives[torch.randperm(len(negatives), generator=generator)[:num_negatives]]
    kept = torch.cat([positives, negatives])
    kept = kept[torch.randperm(len(kept), generator=generator)]
    images = images[kept]
    labels = labels[kept]
    num_trained = len(labels) // 3
    model = train(
        images[:num_trained], labels[:num_trained], weighted=weighted, seed=seed, steps=100
    )
    with torch.no_grad():
        logits = model(images[num_trained:])
    name = f'digits, {rate:.0%} positive{", pos_weight" if weighted else ""}'
    sizes = tuple(size for size in (100, 300) if size < len(logits) / 2)
    return Pool(name, logits, labels[num_trained:, None].long(), sizes)


def map_pool(rate, *, weighted, seed=0, num_images=3_000):
    """Return predictions for pixels of images, which are too sure, and differ by image."""
    generator = torch.Generator().manual_seed(seed)
    base = np.log(rate / (1 - rate))
    level = torch.randn(num_images, 1, generator=generator)
    true_logits = base + level + 2 * torch.randn(num_images, PIXELS_PER_IMAGE, generator=generator)
    labels = torch.rand(true_logits.shape, generator=generator) < true_logits.sigmoid()
    error = 0.5 * torch.randn(num_images, 1, generator=generator)
    shift = -base if weighted else 0.0
    logits = 1.6 * (true_logits + error + shift)
    name = f'maps, {rate:.0%} positive{", pos_weight" if weighted else ""}'
    return Pool(name, logits, labels.long(), (10, 30, 100, 300))


def pools():
    """Yield every network."""
    for weighted in (False, True):
        for rate in (0.5, 0.2, 0.02):
            yield table_pool(rate, weighted=weighted)
        yield labels_pool(weighted=weighted)
        for rate in (0.5, 0.2, 0.02):
            yield digits_pool(rate, weighted=weighted)
        for rate in (0.2, 0.02):
            yield map_pool(rate, weighted=weighted)


def fit(method, pool, images):
    """Return a scaler that is fitted to images of a pool; each image is a group."""
    logits = pool.logits[images]
    labels = pool.labels[images]
    if pool.several_labels:
        rows = ImagePredictions(
            predicted=labels,
            logits=logits[:, None],
            labels=labels,
            images=torch.arange(len(logits)),
            several_labels=True,
        )
        return fit_scaler(SCALERS[method](), rows)
    groups = torch.arange(len(logits)).repeat_interleave(logits.shape[1])
    return SCALERS[method]().fit(logits.reshape(-1, 1), labels.flatten(), groups)


def scale(scaler, pool, images):
    """Return the scaled logits of images of a pool, ``(n, P)`` float64."""
    logits = pool.logits[images].double()
    if pool.several_labels:
        return scaler.transform(logits)
    return scaler.transform(logits.reshape(-1, 1)).view_as(logits)


def choose(pool, held_out, seed):
    """Return the choice by a standard error over images, and that of the lower NLL.

    Both are by the cross-validated NLL of a temperature and of Platt's map.
    """
    fold = torch.from_numpy(np.random.RandomState(seed).permutation(len(held_out)) % FOLDS)
    excess = torch.zeros(len(held_out), pool.logits.shape[1], dtype=torch.float64)
    for number in range(FOLDS):
        is_left_out = fold == number
        if len(pool.labels[held_out[~is_left_out]].unique()) < 2:
            return 'temperature', 'temperature'
        images = held_out[is_left_out]
        nll = []
        for method in ('temperature', 'platt'):
            scaled = scale(fit(method, pool, held_out[~is_left_out]), pool, images)
            labels = pool.labels[images].double()
            nll.append(binary_cross_entropy_with_logits(scaled, labels, reduction='none'))
        excess[is_left_out] = nll[0] - nll[1]
    by_image = (excess - excess.mean()).sum(dim=1)
    standard_error = by_image.square().sum().sqrt() / excess.numel()
    choices = []
    for limit in (standard_error, 0.0):
        choices.append('platt' if excess.mean() > limit else 'temperature')
    return choices


def judge(scaled, labels):
    """Return NLL, mean ECE of P(y = 1) and accuracy of logits and labels ``(n, P)``.

    The last two are in percent. The ECE is that of all pixels, or the mean of the labels.
    """
    probs = scaled.sigmoid()
    labels = labels.double()
    nll = binary_cross_entropy_with_logits(scaled, labels).item()
    index = (probs * 15).ceil().long().sub(1).clamp(0, 14)
    gaps = torch.zeros(15, probs.shape[1], dtype=torch.float64)
    gaps.scatter_add_(0, index, labels - probs)
    accuracy = ((probs > 0.5) == (labels == 1)).double().mean().item()
    return nll, 100 * gaps.abs().sum().item() / probs.numel(), 100 * accuracy


def draw_and_judge(pool, size, seed, num_fresh):
    """Return NLL, ECE and accuracy of each method, ``(methods, 3)``, or None for one class."""
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(pool.logits)))
    held_out = order[:size]
    fresh = order[size : size + num_fresh]
    if len(pool.labels[held_out].unique()) < 2:
        return None
    shape = (-1, pool.labels.shape[1]) if pool.several_labels else (-1, 1)
    labels = pool.labels[fresh].reshape(shape)
    figures = {'none': judge(pool.logits[fresh].double().reshape(shape), labels)}
    for method in ('temperature', 'platt'):
        scaled = scale(fit(method, pool, held_out), pool, fresh)
        figures[method] = judge(scaled.reshape(shape), labels)
    choice, lower = choose(pool, held_out, seed)
    figures['choice'] = figures[choice]
    figures['lower'] = figures[lower]
    return np.array([figures[method] for method in METHODS])


class FixedNetwork(ClassifierMixin, BaseEstimator):
    """A trained network as a classifier of scikit-learn."""

    classes_ = np.array([0, 1])

    def __init__(self, model):
        self.model = model

    def fit(self, inputs, labels):
        raise TypeError('the network is trained, and its calibration leaves it as it is')

    def __sklearn_is_fitted__(self):
        return True

    def decision_function(self, inputs):
        with torch.no_grad():
            return self.model(torch.as_tensor(inputs))[:, 0].numpy()

    def predict(self, inputs):
        return (self.decision_function(inputs) > 0).astype(int)


def print_peers():
    """Print the figures of one network after calibrations of mmcalib and of scikit-learn."""
    torch.manual_seed(0)

    def draw_rows(count):
        labels = (torch.rand(count) < 0.26).float()
        inputs = torch.randn(count, 10)
        inputs[:, :4] += 0.8 * labels[:, None]
        return inputs, labels

    model = build_network(10)
    train_network(model, *draw_rows(1_000), pos_weight=torch.tensor(5.0), steps=150)
    held_out = draw_rows(1_000)
    inputs, labels = draw_rows(5_000)
    labels = labels.long()
    network = FixedNetwork(model)
    probs_by_name = {}

    def keep(name, logits):
        probs_by_name[name] = torch.as_tensor(logits).double().flatten().sigmoid()

    keep('trained with pos_weight=5', network.decision_function(inputs))
    for method in ('temperature', 'platt'):
        calibrated = mmcalib.calibrate(model, [held_out], method=method).model
        keep(f"calibrate, '{method}'", FixedNetwork(calibrated).decision_function(inputs))
        scaler = SCALERS[method]().fit(network.decision_function(held_out[0]), held_out[1].long())
        keep(SCALERS[method].__name__, scaler.transform(network.decision_function(inputs)))
    for method in ('temperature', 'sigmoid', 'isotonic'):
        classifier = CalibratedClassifierCV(FrozenEstimator(network), method=method)
        classifier.fit(held_out[0].numpy(), held_out[1].long().numpy())
        probs = classifier.predict_proba(inputs.numpy())[:, 1]
        probs_by_name[f"CalibratedClassifierCV, '{method}'"] = torch.as_tensor(probs)
    cells = []
    for name, probs in probs_by_name.items():
        probs = probs.double()
        measured = mmcalib.measure(probs, labels, ['ClasswiseECE', 'ECE', 'accuracy'])
        error = 100 * BinaryCalibrationError(n_bins=15)(probs, labels).item()
        nll = log_loss(labels, probs)
        cells.append([name, f'{measured["ClasswiseECE"]:.6f}', f'{error:.6f}'])
        cells[-1] += [f'{measured["ECE"]:.2f}', f'{nll:.4f}', f'{measured["accuracy"]:.2f}']
        cells[-1] += [f'{probs.mean().item():.1%}']
    headings = ['probabilities', 'ECE of P(y = 1), mmcalib', 'torchmetrics', 'ECE', 'NLL']
    print(f'{labels.double().mean().item():.1%} of the labels are 1.')
    print(TextTable([*headings, 'accuracy', 'mean P(y = 1)'], cells).write('markdown'))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--draws', type=int, default=200, help='of held-out data of each size')
    parser.add_argument('--fresh', type=int, default=20_000, help='predictions to judge by')
    parser.add_argument('--only', help='names of networks that contain this text')
    parser.add_argument('--out', type=Path, metavar='FILE.json')
    parser.add_argument('--peers', action='store_true', help='beside scikit-learn and torchmetrics')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peers:
        print_peers()
        return
    rows = []
    for pool in pools():
        if args.only and args.only not in pool.name:
            continue
        num_fresh = args.fresh // pool.logits.shape[1]
        for size in pool.sizes:
            drawn = [draw_and_judge(pool, size, seed, num_fresh) for seed in range(args.draws)]
            figures = np.stack([figure for figure in drawn if figure is not None])
            above = figures[:, :, 0] - figures[:, 1:2, 0]
            row = {
                'network': pool.name,
                'images': size,
                'draws': len(figures),
                'mean': dict(zip(METHODS, figures.mean(axis=0).round(5).tolist(), strict=True)),
                'NLL above temperature, 5 and 95 %': {
                    method: np.quantile(above[:, index], [0.05, 0.95]).round(5).tolist()
                    for index, method in enumerate(METHODS)
                },
                'chosen': (figures[:, 3] == figures[:, 2]).all(axis=1).mean().round(3).item(),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    cells = []
    for row in rows:
        cells.append([row['network'], str(row['images'])])
        for index, digits in ((0, 4), (1, 2), (2, 2)):
            texts = [f'{row["mean"][method][index]:.{digits}f}' for method in METHODS]
            cells[-1].append(' / '.join(texts))
        cells[-1].append(f'{row["chosen"]:.0%}')
    headings = ['network', 'images', 'NLL', 'ECE of P(y = 1)', 'accuracy', 'chosen']
    print(' / '.join(METHODS))
    print(TextTable(headings, cells).write('markdown'))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
