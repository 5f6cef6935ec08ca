"""How many held-out images a scaling needs: its NLL on new images, by the number it is fitted to.

    OMP_NUM_THREADS=1 python tools/benchmarks/held_out.py
    python tools/benchmarks/held_out.py --predictions FILE.npz OTHER.npz --out FILE.json

Simulated logits are those of a calibrated classifier times 2, so that the best scaling is known:
of 10 classes, and of two where 10 % are positive, with log-odds that a training with weights for
the positives has shifted by 2. With `--predictions` there are the networks of these files too:
logarithms of `predictions`, the probabilities (N, K), beside `ground_truth`, the labels (N,). Half
of the images are new ones.

Each figure is the mean over draws of images, in which a prediction is wrong. `error of T` is the
standard deviation of a temperature over the draws, as a share of it, corrected for images that two
draws share; `as printed` is the standard error that a fit prints, likewise. The others are NLLs of
new images above the lowest one: the true probabilities', or that of the best method fitted to all
images that are not new.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import mmcalib
from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS
from mmcalib.tables import TextTable

NUMBERS = (50, 100, 200, 500, 1000, 2000, 5000)
# Fits of a matrix of a hundred classes take some seconds each.
FEWER_DRAWS = 5
METHODS_OF_TWO = ('temperature', 'platt')
METHODS_OF_CLASSES = ('temperature', 'vector', 'matrix')
NEW_ROWS = 20_000
SIMULATED_ROWS = 50_000  # to draw from
TRUE_TEMPERATURE = 2.0
SHIFT_OF_POSITIVES = 2.0


@dataclass(frozen=True)
class Predictions:
    """Logits of one network for images to fit to, and for new ones.

    Attributes:
        name: Name of the network.
        logits: ``(N, K)`` logits to fit to.
        labels: ``(N,)`` their labels.
        new_logits: ``(M, K)`` logits of the new images.
        new_labels: ``(M,)`` their labels.
        lowest: NLL of the true probabilities of the new images; None if they are not known.
    """

    name: str
    logits: np.ndarray
    labels: np.ndarray
    new_logits: np.ndarray
    new_labels: np.ndarray
    lowest: float | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that are compared."""
        return METHODS_OF_TWO if self.logits.shape[1] == 1 else METHODS_OF_CLASSES


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('--predictions', nargs='*', type=Path, default=[], metavar='FILE.npz')
    parser.add_argument('--numbers', nargs='+', type=int, default=NUMBERS, metavar='N')
    parser.add_argument('--draws', type=int, default=50)
    parser.add_argument('--out', type=Path, metavar='FILE.json')
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for predictions in (*simulate(), *read(args.predictions)):
        rows = measure_numbers(predictions, args)
        tables.append({'name': predictions.name, 'rows': rows})
        print(f'\n{as_text(predictions.name, rows).write("markdown")}', flush=True)
    if args.out:
        args.out.write_text(json.dumps(tables, indent=1) + '\n', encoding='utf-8')


def simulate() -> Iterator[Predictions]:
    """Yield simulated classifiers whose best scaling is known."""
    rng = np.random.default_rng(0)
    count = SIMULATED_ROWS + NEW_ROWS
    true_logits = 2 * rng.normal(size=(count, 10))
    labels = draw_labels(true_logits, rng)
    yield split('10 classes, simulated', TRUE_TEMPERATURE * true_logits, labels, true_logits)
    odds = 2 * rng.normal(size=(count, 1)) - 3.2  # 10 % of the labels are 1.
    true_logits = np.concatenate([np.zeros_like(odds), odds], axis=1)
    labels = draw_labels(true_logits, rng)
    shifted = TRUE_TEMPERATURE * odds + SHIFT_OF_POSITIVES
    yield split('10 % positives, simulated', shifted, labels, true_logits)


def split(
    name: str, logits: np.ndarray, labels: np.ndarray, true_logits: np.ndarray
) -> Predictions:
    """Return simulated predictions, of which the last are new ones."""
    num_fitted = len(labels) - NEW_ROWS
    true_probs = torch.as_tensor(true_logits[num_fitted:]).softmax(dim=1)
    return Predictions(
        name=name,
        logits=logits[:num_fitted],
        labels=labels[:num_fitted],
        new_logits=logits[num_fitted:],
        new_labels=labels[num_fitted:],
        lowest=mmcalib.measure(true_probs, labels[num_fitted:], 'NLL'),
    )


def draw_labels(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a label of each row, drawn from the softmax of its logits."""
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def read(paths: list[Path]) -> Iterator[Predictions]:
    """Yield the networks of files, of whose images a half that is drawn is new."""
    for path in paths:
        arrays = np.load(path)
        if not {'predictions', 'ground_truth'} <= {*arrays.files}:
            raise UserError(f'{path} has {arrays.files}: give predictions and ground_truth')
        probs = arrays['predictions'].astype(np.float64)
        logits = np.log(np.clip(probs, np.finfo(np.float32).tiny, 1))
        labels = arrays['ground_truth'].reshape(-1).astype(int)
        order = np.random.default_rng(0).permutation(len(labels))
        half = len(labels) // 2
        fitted = order[:half]
        new = order[half:]
        yield Predictions(path.stem, logits[fitted], labels[fitted], logits[new], labels[new])


def measure_numbers(predictions: Predictions, args) -> list[dict]:
    """Return a row for each number of images, and one without a scaling."""
    lowest = predictions.lowest
    if lowest is None:
        everything = np.arange(len(predictions.labels))
        lowest = min(
            fit_and_measure(predictions, method, everything)[0] for method in predictions.methods
        )
    unscaled = SCALERS['temperature'].from_parameters({'temperature': 1.0})
    excess = new_nll(predictions, unscaled) - lowest
    rows = [as_row(predictions.name, 'no scaling', {'temperature': excess})]
    for number in args.numbers:
        if number < len(predictions.labels):
            figures = measure_number(predictions, number, args.draws, lowest)
            rows.append(as_row(predictions.name, f'{number} images', figures))
    return rows


def measure_number(
    predictions: Predictions, number: int, num_draws: int, lowest: float
) -> dict[str, float]:
    """Return the figures of scalings that are fitted to a number of images, over draws of these."""
    rng = np.random.default_rng(number)
    draws = []
    while len(draws) < num_draws:
        chosen = rng.permutation(len(predictions.labels))[:number]
        if determines_scaling(predictions, chosen):
            draws.append(chosen)
    figures = {}
    for method in predictions.methods:
        is_slow = method == 'matrix' and predictions.logits.shape[1] > 20
        method_draws = draws[:FEWER_DRAWS] if is_slow else draws
        outcomes = [fit_and_measure(predictions, method, chosen) for chosen in method_draws]
        if method == 'temperature':
            temperatures = [scaler.temperature_ for _, scaler in outcomes]
            shared = number / len(predictions.labels)
            error = np.std(temperatures, ddof=1) / np.sqrt(1 - shared)
            figures['error of T'] = error / np.mean(temperatures)
            errors = []
            for chosen, (_, scaler) in zip(draws, outcomes, strict=True):
                error_of_fit = scaler.standard_error(
                    predictions.logits[chosen], predictions.labels[chosen]
                )
                errors.append(error_of_fit / scaler.temperature_)
            figures['as printed'] = np.mean(errors)
        figures[method] = np.mean([nll for nll, _ in outcomes]) - lowest
    return {name: float(value) for name, value in figures.items()}


def determines_scaling(predictions: Predictions, chosen: np.ndarray) -> bool:
    """Return whether a prediction is wrong and two classes occur, as ``calibrate`` demands."""
    logits = predictions.logits[chosen]
    predicted = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(axis=1)
    labels = predictions.labels[chosen]
    return bool((predicted != labels).any()) and len(np.unique(labels)) > 1


def fit_and_measure(predictions: Predictions, method: str, chosen: np.ndarray):
    """Return the NLL of the new images by a scaling of some images, and its scaler."""
    scaler = SCALERS[method]().fit(predictions.logits[chosen], predictions.labels[chosen])
    return new_nll(predictions, scaler), scaler


def new_nll(predictions: Predictions, scaler) -> float:
    """Return the NLL of the new images by a scaler."""
    return mmcalib.measure(
        scaler.predict_proba(predictions.new_logits), predictions.new_labels, 'NLL'
    )


def as_row(name: str, label: str, figures: dict[str, float]) -> dict:
    """Return a row as files of results have it."""
    run = {'metrics': figures, 'version': mmcalib.__version__}
    return {'label': f'{name}, {label}', 'runs': [run]}


def as_text(name: str, rows: list[dict]) -> TextTable:
    """Return rows as a table."""
    headings = [*rows[-1]['runs'][0]['metrics']]
    cells = []
    for row in rows:
        figures = row['runs'][0]['metrics']
        values = [f'{figures[key]:.4f}' if key in figures else '' for key in headings]
        cells.append([row['label'].split(', ')[-1], *values])
    return TextTable([name, *headings], cells)


if __name__ == '__main__':
    main()
