"""Dump the numbers of the library on fixed inputs, and compare two dumps.

``dump`` writes values and gradients of all losses, all metrics through every door, the learned
parameters and the NLL of all scalings, and calibrations of small networks, by public names alone.
So it runs on any version since 0.3. ``compare`` prints the largest difference of each kind.

Example: PYTHONPATH=../before compare_storeys.py dump before.json
         compare_storeys.py dump after.json && compare_storeys.py compare before.json after.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# The largest difference that is allowed of each kind, of the size of the number or of 1.
BOUNDS = {'loss': 1e-9, 'metric': 1e-6, 'scaler': 1e-4, 'calibrate': 1e-4}
IGNORED = 255
RATES = (0.5, 0.2, 0.1)

LOSSES = {
    'ACLSLoss': dict(margin=2.0, alpha=0.3),
    'BrierLoss': {},
    'BSCELoss': dict(gamma=0.7),
    'ConfidencePenaltyLoss': dict(alpha=0.4),
    'DualFocalLoss': dict(gamma=2.5),
    'InverseFocalLoss': dict(gamma=1.5),
    'L1ACELoss': dict(num_bins=6),
    'LabelSmoothingLoss': dict(alpha=0.2),
    'MarginLabelSmoothingLoss': dict(margin=3.0, alpha=0.3),
    'MDCALoss': {},
    'NACLLoss': dict(alpha=0.3),
    'SampleDependentFocalLoss': {},
    'SoftmaxFocalLoss': dict(gamma=3.0),
    'SVLSLoss': dict(sigma=0.8),
}
MAPS_ONLY = ('NACLLoss', 'SVLSLoss')
SHAPES = {'rows': (16, 7), 'wide': (4, 300), 'maps': (2, 5, 9, 11)}

RELIABILITY = ['ECE', 'AECE', 'ClasswiseECE', 'smECE', 'debiasedECE', 'ACE', 'MCE', 'RMSCE', 'OE']
SCORES = ['NLL', 'refinement_NLL', 'calibration_NLL', 'temperature', 'Brier', 'reliability']
RANKING = ['AURC', 'AUGRC', 'AUROC', 'FPR95', 'risk@coverage_0.8', 'coverage@risk_0.1']
MEANS = ['gap', 'gap_size', 'resolution', 'uncertainty', 'accuracy', 'confidence']
METRICS = RELIABILITY + SCORES + RANKING + MEANS
BY_IMAGE = ['ECE', 'ACE', 'MCE', 'RMSCE', 'OE', 'gap', 'NLL', 'Brier', 'accuracy', 'confidence']
CONFIDENCE_ONLY = ['ECE', 'AECE', 'smECE', 'MCE', 'AURC', 'AUROC', 'FPR95', 'accuracy']
PROTOCOLS = ('pooled', 'foreground', 'image', 'paper', 'boundary')


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest='command', required=True)
    dump_parser = commands.add_parser('dump', help='write the numbers of the mmcalib on the path')
    dump_parser.add_argument('file', type=Path)
    compare_parser = commands.add_parser('compare', help='print the differences of two dumps')
    compare_parser.add_argument('before', type=Path)
    compare_parser.add_argument('after', type=Path)
    args = parser.parse_args()
    if args.command == 'dump':
        numbers = all_numbers()
        args.file.write_text(json.dumps(numbers, indent=0))
        print(f'{len(numbers)} entries written to {args.file}')
        return 0
    return compare(json.loads(args.before.read_text()), json.loads(args.after.read_text()))


def compare(before: dict[str, list[float]], after: dict[str, list[float]]) -> int:
    """Print the largest difference of each kind; return 1 if a bound is exceeded."""
    missing = sorted(before.keys() ^ after.keys())
    for name in missing:
        print(f'only in one dump: {name}')
    status = 1 if missing else 0
    print('| kind | numbers | largest difference | of | bound | beyond it |')
    print('|---|--:|--:|---|--:|--:|')
    beyond = []
    for kind, bound in BOUNDS.items():
        differences = []
        count = 0
        for name in sorted(before.keys() & after.keys()):
            if name.split('/')[0] != kind:
                continue
            count += len(before[name])
            differences.append((difference(before[name], after[name]), name))
        worst, worst_name = max(differences, default=(0.0, '-'))
        exceeding = [(value, name) for value, name in differences if not value <= bound]
        beyond += exceeding
        print(f'| {kind} | {count} | {worst:.1e} | {worst_name} | {bound:g} | {len(exceeding)} |')
    for value, name in sorted(beyond, reverse=True)[:40]:
        print(f'{value:.3e}  {name}')
    return 1 if beyond else status


def difference(before: list[float], after: list[float]) -> float:
    """Return the largest difference of two lists, relative to numbers above 1."""
    if len(before) != len(after):
        return math.inf
    largest = 0.0
    for first, second in zip(before, after, strict=True):
        if first is None or second is None:
            largest = max(largest, 0.0 if first is second else math.inf)
            continue
        largest = max(largest, abs(first - second) / max(1.0, abs(first)))
    return largest


def all_numbers() -> dict[str, list[float | None]]:
    """Return all numbers by name; NaN is None."""
    numbers: dict[str, list[float | None]] = {}
    warnings.simplefilter('ignore')
    for part in (loss_numbers, measure_numbers, evaluate_numbers, plugin_numbers):
        numbers |= part()
    return numbers | scaler_numbers() | calibrate_numbers()


def plain(values) -> list[float | None]:
    """Return numbers, arrays or tensors as a list in which NaN is None."""
    if torch.is_tensor(values):
        values = values.detach().double().numpy()
    flat = np.asarray(values, dtype=float).ravel().tolist()
    return [None if math.isnan(value) else value for value in flat]


def random_logits(shape: tuple[int, ...], seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator)


def random_labels(logits: torch.Tensor, seed: int = 1, ignored: bool = False) -> torch.Tensor:
    """Return labels that agree with the logits more often than by chance."""
    generator = torch.Generator().manual_seed(seed)
    noise = 3.0 * torch.randn(logits.shape, generator=generator)
    labels = (logits + noise).argmax(dim=1)
    if ignored:
        chosen = torch.rand(labels.shape, generator=generator) < 0.2
        labels = labels.masked_fill(chosen, IGNORED)
    return labels


def loss_numbers() -> dict[str, list[float | None]]:
    from mmcalib import losses

    numbers = {}
    for name, options in LOSSES.items():
        for shape_name, shape in SHAPES.items():
            if name in MAPS_ONLY and shape_name != 'maps':
                continue
            for ignored in (False, True):
                logits = random_logits(shape).double().requires_grad_()
                labels = random_labels(logits.detach().float(), ignored=ignored)
                loss = getattr(losses, name)(**options)
                extra = {'ignore_index': IGNORED} if ignored else {}
                value = loss(logits, labels, **extra)
                value.backward()
                key = f'loss/{name}/{shape_name}/{"ignored" if ignored else "all"}'
                numbers[f'{key}/value'] = plain(value)
                numbers[f'{key}/gradient'] = plain(logits.grad)
    return numbers


def measure_numbers() -> dict[str, list[float | None]]:
    from mmcalib import measure

    numbers = {}

    def record(key: str, values: dict) -> None:
        for name, value in values.items():
            numbers[f'metric/measure/{key}/{name}'] = plain(value)

    rows = random_logits((400, 6))
    labels = random_labels(rows)
    probs = rows.softmax(dim=1)
    record('rows', measure(probs, labels, METRICS))
    record('rows float64', measure(rows.double().softmax(dim=1), labels, METRICS))
    record('rows half', measure(probs.half(), labels, METRICS))
    record('rows 4 bins', measure(probs, labels, ['ECE', 'AECE', 'ClasswiseECE'], num_bins=4))
    record('rows interval', measure(probs, labels, BY_IMAGE, interval=0.9))
    groups = [f'group {i // 9}' for i in range(len(labels))]
    record('rows groups', measure(probs, labels, BY_IMAGE, interval=0.9, groups=groups))
    some = random_labels(rows, ignored=True)
    record('rows ignored', measure(probs, some, METRICS, ignore_index=IGNORED))
    maps = random_logits((3, 5, 12, 17))
    map_labels = random_labels(maps, ignored=True)
    map_probs = maps.softmax(dim=1)
    record('maps', measure(map_probs, map_labels, METRICS, ignore_index=IGNORED))
    record(
        'maps interval',
        measure(map_probs, map_labels, BY_IMAGE, ignore_index=IGNORED, interval=0.9),
    )
    volumes = random_logits((2, 4, 3, 6, 7))
    record('volumes', measure(volumes.softmax(dim=1), random_labels(volumes), METRICS))
    single = random_logits((300,)).sigmoid()
    truth = (torch.rand(300, generator=torch.Generator().manual_seed(2)) < single.sqrt()).long()
    record('binary', measure(single, truth, METRICS))
    record('binary column', measure(single[:, None], truth, METRICS))
    several, several_labels = several_label_data()
    record('several labels', measure(several.sigmoid(), several_labels, METRICS))
    conf = probs.amax(dim=1)
    correct = probs.argmax(dim=1) == labels
    record('confidences', measure(conf=conf, correct=correct, metrics=CONFIDENCE_ONLY))
    one = random_logits((1, 6))
    record('one image', measure(one.softmax(dim=1), random_labels(one), METRICS))
    large = random_logits((3, 4, 60, 70), scale=20.0)
    record('saturated', measure(large.softmax(dim=1), random_labels(large), METRICS))
    return numbers


def several_label_data(size: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits ``(N, 3)`` of three labels and whether each is there."""
    logits = random_logits((size, 3), seed=5)
    generator = torch.Generator().manual_seed(6)
    chance = (logits / torch.tensor([1.5, 2.0, 3.0])).sigmoid()
    return logits, (torch.rand(logits.shape, generator=generator) < chance).long()


class Identity(nn.Module):
    """A model whose logits are its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def tensor_loader(*tensors: torch.Tensor, batch_size: int = 7) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)


def evaluate_numbers() -> dict[str, list[float | None]]:
    from mmcalib import evaluate

    numbers = {}
    rows = random_logits((101, 6))
    maps = random_logits((9, 5, 12, 17))
    binary_maps = random_logits((5, 1, 12, 17))
    binary_labels = (random_logits((5, 12, 17), seed=3) + binary_maps[:, 0] > 0).long()
    several = several_label_data()
    data = {
        'rows': (rows, random_labels(rows)),
        'maps': (maps, random_labels(maps, ignored=True)),
        'binary maps': (binary_maps, binary_labels),
        'several labels': several,
    }
    for kind, tensors in data.items():
        loader = tensor_loader(*tensors)
        ignore = {'ignore_index': IGNORED} if kind == 'maps' else {}
        values = evaluate(Identity(), loader, METRICS, **ignore)
        values |= {
            f'{name} interval': value
            for name, value in evaluate(
                Identity(), loader, BY_IMAGE, interval=0.9, **ignore
            ).items()
        }
        for name, value in values.items():
            numbers[f'metric/evaluate/{kind}/{name}'] = plain(value)
    for protocol in PROTOCOLS:
        values = evaluate(
            Identity(),
            tensor_loader(*data['maps']),
            METRICS,
            ignore_index=IGNORED,
            protocol=protocol,
        )
        for name, value in values.items():
            numbers[f'metric/evaluate/{protocol}/{name}'] = plain(value)
    return numbers


def plugin_numbers() -> dict[str, list[float | None]]:
    """Return the values of the registered metric, which reads the toolboxes' data samples."""
    import mmengine.registry

    import mmcalib

    mmcalib.register()
    numbers = {}
    rows = random_logits((101, 6))
    maps = random_logits((9, 5, 12, 17))
    binary = random_logits((5, 1, 12, 17)).sigmoid()
    classified = [
        {'pred_score': score, 'gt_label': label[None], 'sample_idx': index}
        for index, (score, label) in enumerate(
            zip(rows.softmax(dim=1), random_labels(rows), strict=True)
        )
    ]
    sets = {
        'classified': classified,
        'segmented': segmented(maps, maps.argmax(dim=1), random_labels(maps, ignored=True)),
        'binary': segmented(binary, (binary[:, 0] > 0.3).long(), (binary[:, 0] > 0.5).long()),
    }
    for kind, samples in sets.items():
        for protocol in PROTOCOLS if kind == 'segmented' else ('pooled',):
            for interval, names in ((None, METRICS), (0.9, BY_IMAGE)):
                metric = mmengine.registry.METRICS.build(
                    dict(
                        type='CalibrationMetric',
                        metrics=names,
                        protocol=protocol,
                        confidence_interval=interval,
                    )
                )
                metric.dataset_meta = {'classes': [str(k) for k in range(6)]}
                metric.process(None, samples)
                for name, value in metric.evaluate(len(samples)).items():
                    key = f'metric/registered/{kind}/{protocol}/{interval}/{name}'
                    numbers[key] = plain(value)
    return numbers


def segmented(
    logits: torch.Tensor, predicted: torch.Tensor, labels: torch.Tensor
) -> list[dict[str, object]]:
    """Return data samples of a segmentor."""
    samples = []
    for index in range(len(logits)):
        samples.append(
            {
                'seg_logits': {'data': logits[index]},
                'pred_sem_seg': {'data': predicted[index][None]},
                'gt_sem_seg': {'data': labels[index][None]},
                'img_path': f'image_{index}.jpg',
            }
        )
    return samples


def scaler_numbers() -> dict[str, list[float | None]]:
    from mmcalib.posthoc import SCALERS

    numbers = {}
    rows = random_logits((600, 5), scale=4.0)
    labels = random_labels(rows)
    single = random_logits((600, 1), scale=4.0)
    single_labels = (single[:, 0] + random_logits((600,), seed=4) > 0).long()
    maps = random_logits((3, 5, 14, 15), scale=4.0)
    map_labels = random_labels(maps, ignored=True)
    for method in SCALERS:
        sets = {'rows': (rows, labels), 'maps': (maps, map_labels)}
        if method in ('platt', 'beta', 'isotonic'):
            sets = {'binary': (single, single_labels)}
        if method in ('temperature', 'isotonic'):
            sets['binary'] = (single, single_labels)
        for kind, (logits, truth) in sets.items():
            scaler = SCALERS[method]()
            options = {'ignore_index': IGNORED} if kind == 'maps' else {}
            try:
                scaler.fit(logits, truth, **options)
                scaled = scaler.transform(logits).double()
            except Exception as error:
                print(f'scaler {method} of {kind}: {error}', file=sys.stderr)
                continue
            key = f'scaler/{method}/{kind}'
            numbers[f'{key}/NLL'] = plain(mean_nll(scaled, truth))
            numbers[f'{key}/probabilities'] = plain(probabilities(scaled)[:2])
    return numbers


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)


def mean_nll(logits: torch.Tensor, labels: torch.Tensor) -> float:
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED).item()


class SmallNetwork(nn.Module):
    """Two layers, of pixels or of vectors, with logits that are too large."""

    def __init__(self, inputs: int, outputs: int, dimensions: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        if dimensions == 0:
            self.hidden = nn.Linear(inputs, 16)
            self.head = nn.Linear(16, outputs)
        else:
            convolution = {2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
            self.hidden = convolution(inputs, 16, 1)
            self.head = convolution(16, outputs, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 4 * self.head(self.hidden(inputs).tanh() * 2)


def calibrate_numbers() -> dict[str, list[float | None]]:
    import mmcalib

    numbers = {}
    networks = {
        'rows': (SmallNetwork(8, 5, 0), (300, 8)),
        'maps': (SmallNetwork(3, 4, 2), (12, 3, 20, 21)),
        'volumes': (SmallNetwork(2, 3, 3), (6, 2, 5, 7, 8)),
        'binary': (SmallNetwork(8, 1, 0), (300, 8)),
        'labels': (SmallNetwork(8, 3, 0), (300, 8)),
    }
    for kind, (network, shape) in networks.items():
        inputs = random_logits(shape, seed=9, scale=1.0)
        with torch.no_grad():
            logits = network(inputs)
        if kind in ('binary', 'labels'):
            noise = random_logits(tuple(logits.shape), seed=10)
            labels = (logits + noise > 0).long()
            if kind == 'binary':
                labels = labels[:, 0]
            methods = ['temperature', 'platt', 'beta', 'isotonic', 'auto']
        else:
            labels = random_labels(logits)
            methods = ['temperature', 'vector', 'ets', 'matrix', 'auto']
        for method in methods:
            try:
                result = mmcalib.calibrate(
                    network, tensor_loader(inputs, labels, batch_size=4), method=method
                )
            except Exception as error:
                print(f'calibrate {kind} {method}: {error}', file=sys.stderr)
                continue
            key = f'calibrate/{kind}/{method}'
            for name, value in result.before.items():
                numbers[f'{key}/before/{name}'] = plain(value)
            for name, value in result.after.items():
                numbers[f'{key}/after/{name}'] = plain(value)
            for when, values in result.errors.items():
                for name, value in values.items():
                    numbers[f'{key}/errors {when}/{name}'] = plain(value)
            with torch.no_grad():
                outputs = result.model(inputs[:5])
            numbers[f'{key}/model'] = plain(probabilities(outputs))
            numbers[f'{key}/changed'] = plain(result.changed)
    return numbers


if __name__ == '__main__':
    sys.exit(main())
