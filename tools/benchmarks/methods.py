"""All methods of calibration on the test split of a config, each cross-fitted.

    python tools/benchmarks/methods.py CONFIG CHECKPOINT --images 50 200 --out FILE.json

Every image is scored by a scaling that was fitted to four of five folds, without the image's own.
With `--images N` the folds have N images, drawn at random, and all images are still scored, so that
the metrics of few and of many images are of the same predictions. The CPU seconds are those of one
fit on one thread. Pixels are drawn from all images.
"""

import json
import time
from pathlib import Path

import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from mmcalib.calibration.choose import MOST_CLASSES, NONE
from mmcalib.calibration.draw import draw_predictions
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.independent_groups import FOLDS, Groups
from mmcalib.choices import NUM_SAMPLES
from mmcalib.cli.parser import ToolParser
from mmcalib.cli.shared import ConfigOptions
from mmcalib.metrics import image_risks, measure
from mmcalib.openmmlab.runner_source import RunnerSource
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.logits import with_other_class
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.runner import build_model
from mmcalib.tables import TextTable

METRICS = ('NLL', 'ECE', 'smECE', 'AUGRC', 'accuracy')


def draw_images(fold_by_image, count, seed):
    """Return a mask of `count` images, drawn at random, nearly as many from each fold."""
    generator = torch.Generator().manual_seed(seed)
    priority = torch.rand(len(fold_by_image), generator=generator)
    rank = torch.empty_like(fold_by_image)
    for fold in range(FOLDS):
        images = (fold_by_image == fold).nonzero().squeeze(1)
        rank[images[priority[images].argsort()]] = torch.arange(len(images)) * FOLDS + fold
    return rank <= rank.sort().values[min(count, len(rank)) - 1]


def cross_fit(method, drawn, fold_by_image, is_kept):
    """Return probabilities ``(M, K)`` by the scaling of each image's fold, and seconds of a fit."""
    probs = with_other_class(drawn.logits).softmax(dim=1)
    images = drawn.rows.images
    fold_by_row = fold_by_image[images]
    seconds = 0.0
    if method == NONE:
        return probs, seconds
    for fold in range(FOLDS):
        start = time.process_time()
        is_fitted = is_kept[images] & (fold_by_row != fold)
        scaler = SCALERS[method]()
        scaler.fit(drawn.logits[is_fitted], drawn.labels[is_fitted], images[is_fitted])
        seconds += (time.process_time() - start) / FOLDS
        in_fold = fold_by_row == fold
        probs[in_fold] = scaler.predict_proba(drawn.logits[in_fold])
    return probs, seconds


def suitable_methods(num_logits):
    """Return the names of the methods that take a head with this number of logits."""
    head = 'sigmoid' if num_logits == 1 else 'softmax'
    names = []
    for name, kind in SCALERS.items():
        if head in kind.heads and num_logits <= MOST_CLASSES.get(name, num_logits):
            names.append(name)
    return names


def metric_values(probs, labels, is_segmentor):
    """Return values by key, with the mIoU of all drawn pixels for a segmentor."""
    values = {}
    for name, value in measure(probs, labels, METRICS).items():
        values[f'calibration/{name}'] = value
    if is_segmentor:
        risks = image_risks(probs.argmax(dim=1), labels, ignore_index=None)
        values['mIoU'] = 100 * (1 - risks['IoU'])
    return values


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
    groups = Groups(torch.arange(len(loader.dataset)), len(loader.dataset))
    fold_by_image = HeldOut(drawn, groups, args.seed).folds
    methods = args.methods or suitable_methods(drawn.logits.shape[1])
    tables = {}
    if args.out and args.out.exists():
        for table in json.loads(args.out.read_text('utf-8')):
            tables[table['name']] = table
    for count in args.images or [len(fold_by_image)]:
        is_kept = draw_images(fold_by_image, count, args.seed)
        name = f'{Path(args.config).stem}, {int(is_kept.sum())} images'
        cells = []
        rows = []
        for method in (NONE, *methods):
            probs, seconds = cross_fit(method, drawn, fold_by_image, is_kept)
            values = metric_values(probs, drawn.labels, hasattr(model, 'decode_head'))
            label = f'{name}, {method}'
            rows.append({'label': label, 'runs': [{'metrics': values}], 'seconds': seconds})
            cells.append([method, *(f'{value:.4f}' for value in values.values()), f'{seconds:.3f}'])
        headings = [key.split('/')[-1] for key in values]
        text_table = TextTable([name, *headings, 'seconds'], cells)
        print(f'\n{text_table.write("markdown")}', flush=True)
        tables[name] = {'name': name, 'rows': rows}
        if args.out:
            content = json.dumps([*tables.values()], indent=1, ensure_ascii=False)
            args.out.write_text(content + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
