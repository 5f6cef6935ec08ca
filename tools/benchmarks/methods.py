"""All methods of calibration on the test split of a config, each cross-fitted.

    python tools/benchmarks/methods.py CONFIG CHECKPOINT --images 50 200 --out FILE.json

Every image is scored by a scaling that was fitted to four of five folds, without the image's own.
With `--images N` these are folds of N images, drawn at random, and all images are still scored: so
figures of few and of many are of the same predictions. The CPU seconds are those of one fit on one
thread. Pixels are drawn from all images.
"""

import json
import time
from pathlib import Path

import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from mmcalib.calibration.choose import MOST_CLASSES, NONE
from mmcalib.calibration.draw import draw_predictions
from mmcalib.calibration.folds import FOLDS, assign_folds, fit_scaler
from mmcalib.cli.arguments import ConfigOptions
from mmcalib.cli.parser import ToolParser
from mmcalib.metrics import image_risks, measure
from mmcalib.names import NUM_SAMPLES
from mmcalib.openmmlab.runner_source import RunnerSource
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.logits import with_other_class
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.weights import build_model
from mmcalib.tables import TextTable

FIGURES = ('NLL', 'ECE', 'smECE', 'AUGRC', 'accuracy')


def some_images(fold_of, count, seed):
    """Return a mask of so many images, drawn at random, nearly as many of each fold."""
    generator = torch.Generator().manual_seed(seed)
    priority = torch.rand(len(fold_of), generator=generator)
    rank = torch.empty_like(fold_of)
    for fold in range(FOLDS):
        own = (fold_of == fold).nonzero().squeeze(1)
        rank[own[priority[own].argsort()]] = torch.arange(len(own)) * FOLDS + fold
    return rank <= rank.sort().values[min(count, len(rank)) - 1]


def cross_fitted(method, drawn, fold_of, kept):
    """Return probabilities ``(M, K)`` by the scaling of each image's fold, and seconds of a fit."""
    probs = with_other_class(drawn.logits).softmax(dim=1)
    images = drawn.rows.images
    fold = fold_of[images]
    seconds = 0.0
    if method == NONE:
        return probs, seconds
    for number in range(FOLDS):
        start = time.process_time()
        is_fitted = kept[images] & (fold != number)
        scaler = fit_scaler(SCALERS[method](), drawn, images, is_fitted)
        seconds += (time.process_time() - start) / FOLDS
        probs[fold == number] = scaler.predict_proba(drawn.logits[fold == number])
    return probs, seconds


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--methods', nargs='+', choices=SCALERS, help='all that suit the head')
    parser.add_argument('--images', type=int, nargs='+', metavar='N', help='to fit to; all of them')
    parser.add_argument('--seed', type=int, default=0, help='of folds and images')
    parser.add_argument('--out', type=Path, metavar='FILE.json', help='tables to add or to renew')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg = load_config(args.config, args.cfg_options)
    set_loader_defaults(cfg)
    init_default_scope(cfg.default_scope)
    model = build_model(cfg, [read_checkpoint(args.checkpoint)])
    loader = Runner.build_dataloader(cfg.test_dataloader, seed=args.seed)
    source = RunnerSource(model, loader)
    batches = source.read(model, 'Reading logits')
    drawn = draw_predictions(batches, source, num_samples=NUM_SAMPLES, seed=args.seed)
    fold_of = assign_folds(len(loader.dataset), seed=args.seed)
    size = drawn.logits.shape[1]
    head = 'sigmoid' if size == 1 else 'softmax'
    methods = args.methods or [
        name
        for name, kind in SCALERS.items()
        if head in kind.heads and size <= MOST_CLASSES.get(name, size)
    ]
    tables = json.loads(args.out.read_text('utf-8')) if args.out and args.out.exists() else []
    tables = {table['name']: table for table in tables}
    for count in args.images or [len(fold_of)]:
        kept, cells, rows = some_images(fold_of, count, args.seed), [], []
        name = f'{Path(args.config).stem}, {int(kept.sum())} images'
        for method in (NONE, *methods):
            probs, seconds = cross_fitted(method, drawn, fold_of, kept)
            found = measure(probs, drawn.labels, FIGURES)
            found = {f'calibration/{key}': value for key, value in found.items()}
            if hasattr(model, 'decode_head'):
                risks = image_risks(probs.argmax(dim=1), drawn.labels, ignore_index=None)
                found['mIoU'] = 100 * (1 - risks['IoU'])
            label = f'{name}, {method}'
            rows.append({'label': label, 'runs': [{'metrics': found}], 'seconds': seconds})
            cells.append([method, *(f'{v:.4f}' for v in found.values()), f'{seconds:.3f}'])
        headings = [key.split('/')[-1] for key in found]
        table = TextTable([name, *headings, 'seconds'], cells)
        print(f'\n{table.write("markdown")}', flush=True)
        tables[name] = {'name': name, 'rows': rows}
        if args.out:
            text = json.dumps([*tables.values()], indent=1, ensure_ascii=False)
            args.out.write_text(text + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
