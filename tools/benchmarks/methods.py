"""All methods of calibration on the test split of a config, each cross-fitted.

    python tools/benchmarks/methods.py CONFIG CHECKPOINT --images 50 200 --out FILE.json

Every image is scored by a scaling that was fitted to four of five folds, without the image's own.
With `--images N` these are folds of N images, drawn at random, and all images are still scored: so
figures of few and of many are of the same predictions. CPU time and memory are those of one fit on
one thread, memory beyond what is in use before (by Linux's peak of the resident size). Pixels are
drawn from all images (`--samples`). Where fiducio is installed (pip install fiducio), `--methods
fiducio` is its CMSap: the same map as 'class-conditional', as it comes: 200 steps of Adam without a
penalty.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from torch import Tensor

from mmcalib.cli.arguments import ConfigOptions
from mmcalib.metrics import measure
from mmcalib.posthoc import SCALERS, LogitScaler, TemperatureScaler
from mmcalib.posthoc.draw import NUM_SAMPLES, DrawnPredictions, draw_predictions
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.tasks.calibrate.choose import MOST_CLASSES, NONE, mean_iou
from mmcalib.tasks.calibrate.folds import FOLDS, fit_folds, folds_of_groups
from mmcalib.tasks.predict.load_model import load_predicting_model

KB = 1024  # in a MB


class Fiducio(LogitScaler):
    """Fiducio's argmax-preserving scaling in the terms of ours."""

    heads = ('softmax',)

    def fit(self, logits, labels, groups=None):
        self.theirs = import_module('fiducio').ArgmaxPreservingMatrixScaling(ignore_index=-1)
        self.theirs.fit(logits, labels)
        return self

    def predict_proba(self, logits):
        maps = logits.T[None, :, None]  # (1, K, 1, M)
        return self.theirs.decision_function(maps)[0, :, 0].T.softmax(dim=1)


METHODS = {**SCALERS, 'fiducio': Fiducio}


@dataclass
class Data:
    """The predictions of a split.

    Attributes:
        rows: Of all valid predictions, or of those drawn.
        fold_of: ``(n,)``, of each image.
        pixels: Whether they are pixels.
    """

    rows: DrawnPredictions
    fold_of: Tensor
    pixels: bool

    def fit(self, method: str, kept: Tensor) -> tuple[list[LogitScaler], float, float]:
        """Return a scaler for each fold, fitted to the images kept, CPU seconds and MB of a fit."""
        drawn = _only(self.rows, kept)
        before, start = _restarted_peak(), time.process_time()
        folds = fit_folds(METHODS[method](), drawn, self.fold_of)
        seconds = (time.process_time() - start) / FOLDS
        return folds, seconds, _resident('VmHWM') - before

    def predict(self, folds: list[LogitScaler]) -> Tensor:
        """Return the probabilities ``(M, K)`` of each prediction under the scaler of its fold."""
        parts = []
        fold = self.fold_of[self.rows.images]
        for number, scaler in enumerate(folds):
            parts.append(scaler.predict_proba(self.rows.logits[fold == number]))
        places = fold.argsort(stable=True)
        return torch.cat(parts)[places.argsort()]


def read(cfg, checkpoint, samples, seed):
    """Return the predictions of a config's test split."""
    set_loader_defaults(cfg)
    init_default_scope(cfg.default_scope)
    model, _ = load_predicting_model(cfg, [checkpoint])
    loader = Runner.build_dataloader(cfg.test_dataloader, seed=seed)
    fold_of = folds_of_groups(len(loader.dataset), seed=seed)
    rows = draw_predictions(model, loader, num_samples=samples, seed=seed)
    return Data(rows, fold_of, hasattr(model, 'decode_head'))


def figures_of(probs, labels, *, pixels):
    """Return the figures of probabilities."""
    predicted = probs.argmax(dim=1)
    found = measure(probs, labels, ['NLL', 'ECE', 'smECE', 'AUGRC', 'accuracy'])
    figures = {f'calibration/{name}': value for name, value in found.items()}
    return {**figures, 'mIoU': mean_iou(predicted, labels)} if pixels else figures


def suitable(rows):
    """Return the methods that suit a head and its number of classes."""
    size = rows.logits.shape[1]
    head = 'sigmoid' if size == 1 else 'softmax'
    return [
        name
        for name, kind in SCALERS.items()
        if head in kind.heads and size <= MOST_CLASSES.get(name, size)
    ]


def some_images(fold_of, count, seed):
    """Return a mask of so many images, drawn at random, nearly as many of each fold."""
    generator = torch.Generator().manual_seed(seed)
    priority = torch.rand(len(fold_of), generator=generator)
    rank = torch.empty_like(fold_of)
    for fold in range(FOLDS):
        own = (fold_of == fold).nonzero().squeeze(1)
        rank[own[priority[own].argsort()]] = torch.arange(len(own)) * FOLDS + fold
    return rank <= rank.sort().values[min(count, len(rank)) - 1]


def alone(function, *args):
    """Run a measurement in a process of its own, whose memory no other has used."""
    with ProcessPoolExecutor(1, get_context('fork')) as pool:
        return pool.submit(function, *args).result()


def table(name, data, methods, count, seed):
    """Measure methods fitted to so many images, print a table, and return it for the file."""
    kept = some_images(data.fold_of, count, seed)
    count = int(kept.sum())
    print(f'\n{name}: {len(data.rows.labels)} predictions of {len(kept)} images, ', end='')
    print(f'fitted to {count} of them, {FOLDS - 1} of {FOLDS} folds at a time\n')
    headings = ['method', 'NLL', 'ECE (%)', 'smECE (%)', 'AUGRC (%)', 'accuracy (%)']
    headings += ['mIoU (%)'] if data.pixels else []
    headings += ['a fit', 'memory']
    print('| ' + ' | '.join(headings) + ' |')
    print('|---|' + '--:|' * (len(headings) - 1), flush=True)
    rows = []
    for method in (NONE, *methods):
        folds, cost = [TemperatureScaler.from_parameters({'temperature': 1.0})] * FOLDS, {}
        if method != NONE:
            try:
                folds, seconds, memory = alone(data.fit, method, kept)
            except ValueError as error:
                print(f'| {method} | {error} |', flush=True)
                continue
            cost = {'seconds': seconds, 'MB': memory}
        figures = figures_of(data.predict(folds), data.rows.labels, pixels=data.pixels)
        label = f'{name}, {count} images, {method}'
        rows.append({'label': label, 'runs': [{'metrics': figures}], **cost})
        nll, *percentages = figures.values()
        cells = [method, f'{nll:.4f}', *(f'{value:.2f}' for value in percentages)]
        cells += [_duration(cost['seconds']), f'{cost["MB"]:.0f} MB'] if cost else ['', '']
        print('| ' + ' | '.join(cells) + ' |', flush=True)
    return {'name': f'{name}, {count} images', 'rows': rows}


def write(path, tables):
    """Put tables into a file; rows take the place of those of the same labels."""
    path = Path(path)
    known = json.loads(path.read_text('utf-8')) if path.exists() else []
    rows = {}
    for table in (*known, *tables):
        rows.setdefault(table['name'], {}).update({row['label']: row for row in table['rows']})
    content = [{'name': name, 'rows': list(own.values())} for name, own in rows.items()]
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + '\n', encoding='utf-8')


def _only(drawn, kept):
    rows = kept[drawn.images]
    own = drawn.logits[rows], drawn.labels[rows], drawn.images[rows]
    return DrawnPredictions(*own, drawn.population, drawn.num_images)


def _duration(seconds):
    return f'{1000 * seconds:.0f} ms' if seconds < 1 else f'{seconds:.0f} s'


def _resident(key):
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / KB


def _restarted_peak():
    """Let the largest resident size start from here, and return it."""
    Path('/proc/self/clear_refs').write_text('5')
    return _resident('VmRSS')


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--methods', nargs='+', choices=METHODS, help='all that suit the head')
    parser.add_argument('--images', type=int, nargs='+', metavar='N', help='to fit to; all of them')
    parser.add_argument('--samples', type=int, default=NUM_SAMPLES, help='predictions to draw')
    parser.add_argument('--seed', type=int, default=0, help='of folds and images')
    parser.add_argument('--out', metavar='FILE.json', help='tables to add rows to, or to renew')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg = load_config(args.config, args.cfg_options)
    data = read(cfg, args.checkpoint, args.samples, args.seed)
    methods = args.methods or suitable(data.rows)
    for count in args.images or [len(data.fold_of)]:
        found = table(Path(args.config).stem, data, methods, count, args.seed)
        if args.out:
            write(args.out, [found])


if __name__ == '__main__':
    main()
