"""Calibration of published networks that others trained, from their published predictions.

    mkdir published && cd published
    git clone https://github.com/cgnorthcutt/benchmarking-keras-pytorch
    git clone https://github.com/cleanlab/label-errors
    git clone https://github.com/EFS-OpenSource/calibration-framework
    cd .. && python tools/benchmarks/published.py published

The first two repositories have the five most probable classes of 34 ImageNet networks for all
50,000 validation images, and the labels of these; the third has all probabilities of CIFAR
networks. A repository that FOLDER lacks is left out. Your own predictions lie in FOLDER/own, one
file for each model: NAME.npz with `conf` and `correct`, or with `probs` and `labels`.

It writes published.json, the picture published.png, and the tables of published.md anew, in --out.

- networks: figures on all images, and the 95 % interval of the gap
- thresholds: mmcalib.threshold on one half of the images, 5 % errors with a probability of 90 %;
  how often a threshold was proven, how often the other half kept the promise, and its coverage
- bare confidences: Platt's map, and scikit-learn's isotonic regression, from the confidence to the
  probability of being correct, fitted to one half, and the ECE of the other
- scalings: each scaling of the CIFAR networks, fitted to one half; NLL and ECE of the other half.
  Those of netcal and probmetrics are beside, if these packages are installed
"""

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression

import mmcalib
from mmcalib import measure
from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, PlattScaler
from mmcalib.tables import TextTable

RESULTS = Path(__file__).resolve().parents[2] / 'docs' / 'results'
IMAGENET = 'benchmarking-keras-pytorch'
IMAGENET_LABELS = Path(
    'label-errors', 'original_test_labels', 'imagenet_val_set_original_labels.npy'
)
CIFAR = 'calibration-framework'
OWN = 'own'
KINDS = {'pytorch': 'PyTorch', 'keras': 'Keras', OWN: 'yours'}
COLOURS = {'PyTorch': '#0072B2', 'Keras': '#D55E00', 'yours': '#000000'}

METRICS = ('accuracy', 'ECE', 'gap', 'AURC', 'reliability', 'resolution', 'uncertainty')
RISK = 0.05
PROBABILITY = 0.9
# The least distance of a probability from 0 and from 1, so that its log-odds are finite.
LEAST_PROBABILITY = 1e-7
CIFAR_METHODS = ('temperature', 'vector', 'matrix', 'ets', 'isotonic', 'class-temperatures')


@dataclass(frozen=True)
class Network:
    """The predictions of one network.

    Attributes:
        name: Its name in the table.
        kind: Who published it, one of KINDS' values.
        conf: ``(N,)`` probabilities of the predicted classes.
        correct: ``(N,)`` booleans.
    """

    name: str
    kind: str
    conf: np.ndarray
    correct: np.ndarray


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('folder', type=Path, help='folder of the cloned repositories')
    parser.add_argument('--out', type=Path, default=RESULTS, help='default: docs/results')
    parser.add_argument('--splits', type=int, default=100, help='splits for thresholds')
    parser.add_argument('--fit-splits', type=int, default=10, help='splits for fits')
    args = parser.parse_args()
    torch.set_num_threads(1)
    networks = [*read_imagenet(args.folder), *read_own(args.folder)]
    cifar = list(read_cifar(args.folder))
    if not networks and not cifar:
        parser.error(
            f'{args.folder} has none of {IMAGENET}, {CIFAR} and {OWN}: clone the repositories, as '
            'the description at the top of --help says'
        )
    start = time.time()
    measured = {
        'version': mmcalib.__version__,
        'networks': [measure_network(network, args) for network in networks],
        'scalings': [row for name, *arrays in cifar for row in scale(name, *arrays, args)],
    }
    measured['seconds'] = round(time.time() - start)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'published.json').write_text(json.dumps(measured, indent=1) + '\n')
    if networks:
        draw_gaps(measured['networks']).savefig(args.out / 'published.png', dpi=130)
    tables = make_tables(measured)
    page = args.out / 'published.md'
    if page.exists():
        text = replace_tables(page.read_text(encoding='utf-8'), tables)
        note = f'<!-- version -->\nMeasured with {measured["version"]}.'
        page.write_text(re.sub('<!-- version -->\n.*', note, text), encoding='utf-8')
    for name, table in tables.items():
        print(f'{name}\n\n{table.write()}\n')
    print(f'{measured["seconds"]} s; written to {args.out}')


def read_imagenet(folder: Path) -> Iterator[Network]:
    """Yield the networks of the first repository."""
    paths = sorted((folder / IMAGENET).glob('*_imagenet/*_imagenet_top5preds.npy'))
    if not paths:
        return
    if not (folder / IMAGENET_LABELS).is_file():
        raise UserError(f'{folder / IMAGENET_LABELS} is missing: clone label-errors too')
    labels = np.load(folder / IMAGENET_LABELS)
    for path in paths:
        name, framework = path.name.removesuffix('_imagenet_top5preds.npy').rsplit('_', 1)
        # The five classes are in no order, and ResNet-152 is published in half precision.
        classes = np.load(path)
        probs = np.load(str(path).replace('preds.npy', 'probs.npy')).astype(np.float32)
        column = probs.argmax(axis=1)[:, None]
        conf = np.take_along_axis(probs, column, axis=1)[:, 0]
        predicted = np.take_along_axis(classes, column, axis=1)[:, 0]
        yield Network(name, KINDS[framework], conf, predicted == labels)


def read_own(folder: Path) -> Iterator[Network]:
    """Yield the networks of the reader's own files."""
    for path in sorted((folder / OWN).glob('*.npz')):
        arrays = np.load(path)
        if 'probs' in arrays:
            conf = arrays['probs'].max(axis=1)
            correct = arrays['probs'].argmax(axis=1) == arrays['labels']
        elif 'conf' in arrays:
            conf = arrays['conf']
            correct = arrays['correct'].astype(bool)
        else:
            raise UserError(
                f'{path} has {arrays.files}: give conf and correct, or probs and labels'
            )
        yield Network(path.stem, KINDS[OWN], conf, correct)


def read_cifar(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the probabilities ``(N, K)`` and the labels ``(N,)`` of CIFAR networks."""
    for path in sorted((folder / CIFAR).rglob('*-cifar-*.npz')):
        arrays = np.load(path)
        yield path.stem, arrays['predictions'], arrays['ground_truth'].reshape(-1).astype(int)


def halves(count: int, splits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the indices of two random halves, as many times as there are splits."""
    rng = np.random.default_rng(0)
    for _ in range(splits):
        order = rng.permutation(count)
        yield order[: count // 2], order[count // 2 :]


def measure_network(network: Network, args) -> dict:
    """Return all figures of a network whose other probabilities are not known."""
    conf = network.conf
    correct = network.correct
    figures = measure(conf=conf, correct=correct, metrics=METRICS)
    gap = measure(conf=conf, correct=correct, metrics=['gap'], interval=0.95)
    row = {'name': network.name, 'kind': network.kind, 'count': len(conf)}
    row.update({name: figures[name] for name in METRICS})
    row.update(gap_low=gap['gap_low'], gap_high=gap['gap_high'])
    row.update(try_thresholds(conf, correct, args.splits))
    row.update(map_confidences(conf, correct, args.fit_splits))
    return row


def try_thresholds(conf: np.ndarray, correct: np.ndarray, splits: int) -> dict:
    """Return how often a threshold of one half is proven, and what it does on the other half."""
    coverages = []
    error_rates = []
    for fitted, tested in halves(len(conf), splits):
        promise = mmcalib.threshold(
            conf[fitted], correct[fitted], risk=RISK, probability=PROBABILITY
        )
        if promise.threshold is None:
            continue
        is_kept = conf[tested] > promise.threshold
        coverages.append(100 * is_kept.mean())
        error_rates.append((~correct[tested][is_kept]).mean())
    if not coverages:
        return {'proven': 0.0, 'promise_kept': None, 'coverage': None}
    return {
        'proven': 100 * len(coverages) / splits,
        'promise_kept': 100 * float(np.mean(np.array(error_rates) <= RISK)),
        'coverage': float(np.mean(coverages)),
    }


def map_confidences(conf: np.ndarray, correct: np.ndarray, splits: int) -> dict:
    """Return the ECE of one half, with the confidences mapped as the other half says."""
    errors = {'platt': [], 'isotonic': []}
    for fitted, tested in halves(len(conf), splits):
        platt = PlattScaler().fit(log_odds(conf[fitted]), correct[fitted].astype(int))
        isotonic = IsotonicRegression(out_of_bounds='clip').fit(conf[fitted], correct[fitted])
        mapped_confidences = {
            # The two columns are the probabilities that a prediction is wrong and correct.
            'platt': platt.predict_proba(log_odds(conf[tested]))[:, 1],
            'isotonic': isotonic.predict(conf[tested]),
        }
        for method, mapped in mapped_confidences.items():
            ece = measure(conf=mapped, correct=correct[tested], metrics='ECE')
            errors[method].append(ece)
    return {f'{method}_ECE': float(np.mean(values)) for method, values in errors.items()}


def log_odds(conf: np.ndarray) -> np.ndarray:
    """Return the finite log-odds ``(N, 1)`` of confidences."""
    conf = np.clip(conf.astype(np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return (np.log(conf) - np.log1p(-conf))[:, None]


def scale(name: str, probs: np.ndarray, labels: np.ndarray, args) -> list[dict]:
    """Return NLL and ECE of one half for each scaling that was fitted to the other."""
    methods = {'none': lambda probs, labels: lambda new_probs: new_probs}
    methods.update({method: mmcalib_fit(method) for method in CIFAR_METHODS})
    methods.update(netcal_fits())
    methods.update(probmetrics_fits())
    rows = []
    for method, fit in methods.items():
        values = []
        seconds = []
        for fitted, tested in halves(len(labels), args.fit_splits):
            start = time.process_time()
            predict = fit(probs[fitted], labels[fitted])
            seconds.append(time.process_time() - start)
            figures = measure(predict(probs[tested]), labels[tested], ['NLL', 'ECE'])
            values.append((figures['NLL'], figures['ECE']))
        nll, ece = np.mean(values, axis=0)
        nll_error, ece_error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
        rows.append(
            dict(
                network=name,
                method=method,
                NLL=nll,
                NLL_error=nll_error,
                ECE=ece,
                ECE_error=ece_error,
                fit_seconds=float(np.median(seconds)),
            )
        )
    return rows


def mmcalib_fit(method: str) -> Callable:
    """Return a function that fits a scaling of mmcalib, and returns its map of probabilities."""

    def fit(probs, labels):
        scaler = SCALERS[method]().fit(log_probabilities(probs), labels)
        return lambda new_probs: scaler.predict_proba(log_probabilities(new_probs))

    return fit


def log_probabilities(probs: np.ndarray) -> np.ndarray:
    """Return logits of probabilities; a softmax of them gives the probabilities again."""
    return np.log(np.clip(probs.astype(np.float64), np.finfo(np.float32).tiny, 1))


def netcal_fits() -> dict[str, Callable]:
    """Return the fits of netcal, none if it is not installed."""
    try:
        from netcal.binning import HistogramBinning
        from netcal.scaling import TemperatureScaling
    except ImportError:
        return {}

    def fit_with(scaling):
        def fit(probs, labels):
            fitted = scaling()
            # In float32 its temperature stays at 1.
            fitted.fit(probs.astype(np.float64), labels)
            return lambda new: normalised(fitted.transform(new.astype(np.float64)))

        return fit

    return {
        'netcal: TemperatureScaling': fit_with(TemperatureScaling),
        'netcal: HistogramBinning': fit_with(HistogramBinning),
    }


def probmetrics_fits() -> dict[str, Callable]:
    """Return the fits of probmetrics, none if it is not installed."""
    try:
        from probmetrics.calibrators import get_calibrator
    except ImportError:
        return {}

    def fit_with(name):
        def fit(probs, labels):
            calibrator = get_calibrator(name)
            calibrator.fit(probs.astype(np.float64), labels)
            return lambda new: normalised(calibrator.predict_proba(new.astype(np.float64)))

        return fit

    names = {'temp-scaling': 'temperature', 'svs': 'SVS', 'sms': 'SMS'}
    return {f'probmetrics: {title}': fit_with(name) for name, title in names.items()}


def normalised(probs: np.ndarray) -> np.ndarray:
    """Return probabilities whose rows sum to one, which those of some packages nearly do."""
    probs = np.clip(np.asarray(probs, dtype=np.float64), 1e-12, None)
    return probs / probs.sum(axis=1, keepdims=True)


def draw_gaps(rows: list[dict]):
    """Return a figure of the gap of each network, with its interval."""
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row['gap'])
    figure = Figure(figsize=(8, 1.2 + 0.2 * len(rows)), layout='constrained')
    axes = figure.subplots()
    for kind, colour in COLOURS.items():
        heights = [number for number, row in enumerate(rows) if row['kind'] == kind]
        if not heights:
            continue
        chosen = [rows[number] for number in heights]
        gap = np.array([row['gap'] for row in chosen])
        low = np.array([row['gap_low'] for row in chosen])
        high = np.array([row['gap_high'] for row in chosen])
        axes.errorbar(
            gap,
            heights,
            xerr=[gap - low, high - gap],
            fmt='o',
            color=colour,
            markersize=4,
            label=kind,
        )
        ece = [row['ECE'] for row in chosen]
        axes.plot(ece, heights, '|', color=colour, markersize=9)
    axes.plot([], [], '|', color='#444444', markersize=9, label='ECE')
    axes.axvline(0, color='#444444', linewidth=0.8)
    names = [f'{row["name"]}, {row["accuracy"]:.0f} %' for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_ylim(-1, len(rows))
    axes.set_xlabel('gap: mean confidence − accuracy (points), with its 95 % interval')
    axes.set_ylabel('network, accuracy')
    axes.grid(axis='x', linewidth=0.4, alpha=0.5)
    axes.legend(loc='lower right')
    return figure


def make_tables(measured: dict) -> dict[str, TextTable]:
    """Return the tables of the page, by their names."""
    networks = sorted(measured['networks'], key=lambda row: row['gap'])
    tables = {}
    if networks:
        tables['networks'] = TextTable(
            [
                'network',
                'of',
                'accuracy (%)',
                'gap (%), 95 %',
                'ECE (%)',
                'AURC (%)',
                'refinement',
                'ECE (%), Platt',
                'ECE (%), isotonic',
            ],
            [network_cells(row) for row in networks],
            alignment='llrrrrrrr',
        )
        tables['thresholds'] = TextTable(
            [
                'network',
                'of',
                'accuracy (%)',
                'proven in (%)',
                'promise kept in (%)',
                'coverage (%)',
            ],
            [
                threshold_cells(row)
                for row in sorted(networks, key=lambda row: row['coverage'] or 0, reverse=True)
            ],
            alignment='llrrrr',
        )
    if measured['scalings']:
        tables['scalings'] = scaling_table(measured['scalings'])
    return tables


def network_cells(row: dict) -> list[str]:
    """Return the cells of a network in the first table."""
    # The Brier score of "is correct" is reliability + refinement.
    refinement = row['uncertainty'] - row['resolution']
    return [
        row['name'],
        row['kind'],
        f'{row["accuracy"]:.2f}',
        f'{row["gap"]:+.2f} [{row["gap_low"]:+.2f}, {row["gap_high"]:+.2f}]',
        f'{row["ECE"]:.2f}',
        f'{row["AURC"]:.2f}',
        f'{refinement:.4f}',
        f'{row["platt_ECE"]:.2f}',
        f'{row["isotonic_ECE"]:.2f}',
    ]


def threshold_cells(row: dict) -> list[str]:
    """Return the cells of a network in the table of thresholds."""
    cells = [row['name'], row['kind'], f'{row["accuracy"]:.2f}', f'{row["proven"]:.0f}']
    if row['coverage'] is None:
        return [*cells, '–', '–']
    return [*cells, f'{row["promise_kept"]:.0f}', f'{row["coverage"]:.1f}']


def scaling_table(rows: list[dict]) -> TextTable:
    """Return the table of the scalings, with columns for each CIFAR network."""
    names = list(dict.fromkeys(row['network'] for row in rows))
    by_key = {(row['method'], row['network']): row for row in rows}
    cells = []
    for method in dict.fromkeys(row['method'] for row in rows):
        line = [method]
        for name in names:
            row = by_key[method, name]
            line.append(f'{row["NLL"]:.4f} ({row["NLL_error"]:.4f})')
            line.append(f'{row["ECE"]:.2f} ({row["ECE_error"]:.2f})')
        cells.append(line)
    headings = ['scaling']
    for name in names:
        headings += [f'{name}: NLL', 'ECE (%)']
    return TextTable(headings, cells)


def replace_tables(page: str, tables: dict[str, TextTable]) -> str:
    """Return a page whose tables, between `<!-- table: NAME -->` and `<!-- end -->`, are new."""
    for name, table in tables.items():
        start = f'<!-- table: {name} -->\n'
        end = '\n<!-- end -->'
        if start not in page:
            continue
        before, rest = page.split(start, 1)
        after = rest.split(end, 1)[1]
        page = f'{before}{start}\n{table.write("markdown")}\n{end}{after}'
    return page


if __name__ == '__main__':
    warnings.simplefilter('ignore', FutureWarning)  # netcal and probmetrics give some
    main()
