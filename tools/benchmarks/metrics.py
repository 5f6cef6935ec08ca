"""Time and memory of the calibration metrics, beside torchmetrics and mmseg, in one run.

    python tools/benchmarks/metrics.py --threads 1

Times are of one image, as ratios to one `max` and one `logsumexp` over its logits; contenders take
turns, and each time is the best of its rounds, of CPU time where there is one thread. Memory is
what a process of its own holds more than before its first image, on Linux. torchmetrics and mmseg
are optional.

    python tools/benchmarks/metrics.py --threads 1 --sizes --images --classifier 0 0 \\
        --runs configs/mbls/digit_scenes.py

tests configs with random weights instead, and prints the share of the calibration metrics.
"""

import argparse
import importlib
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from mmengine.config import DictAction

from mmcalib.metrics import AECE, ECE, NAMES, CalibrationMetric
from mmcalib.runs.config import limit_samples, load_config, set_loader_defaults
from mmcalib.runs.runner import build_runner

SIZES = ('21x375x500', '150x512x683')
# After so many images memory is read.
IMAGES = (1, 100, 1200)
# Of a classifier.
BATCH = 64
PROTOCOLS = ('pooled', 'boundary', 'image', 'paper')
EVERY = ('ECE', 'AECE', 'NLL', 'Brier', 'ClasswiseECE')
# Metrics, and other options, of the measurements of memory.
MEMORY = {
    'ECE, AECE, NLL': (EVERY[:3], {}),
    'with Brier, ClasswiseECE': (EVERY, {}),
    'every metric, by class and distance': (NAMES, dict(per_class=True, per_distance=True)),
    **{f"every metric, protocol '{name}'": (NAMES, dict(protocol=name)) for name in PROTOCOLS[1:]},
}


def draw(seed, size):
    """Return a sample of mmseg's: patches of labels, and logits of which most are very sure."""
    num_classes, *size = map(int, size.split('x'))
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(num_classes, (size[0] // 25 + 1, size[1] // 25 + 1), generator=generator)
    label = coarse.repeat_interleave(25, 0).repeat_interleave(25, 1)[: size[0], : size[1]]
    logits = 2 * torch.randn(num_classes, *size, generator=generator)
    sure = 16 + 4 * torch.randn(1, *size, generator=generator)
    logits.scatter_add_(0, label[None], sure)
    label[torch.rand(size, generator=generator) < 0.05] = 255
    return {
        'seg_logits': {'data': logits},
        'pred_sem_seg': {'data': logits.argmax(0, keepdim=True)},
        'gt_sem_seg': {'data': label[None]},
        'img_path': f'image_{seed}.jpg',
    }


def floor(sample):
    logits = sample['seg_logits']['data']
    return logits.max(dim=0), logits.logsumexp(dim=0)


def ours(*names, **options):
    metric = CalibrationMetric(names, **options)
    return lambda sample: metric.process(None, [sample])


def ours_one_by_one():
    metrics = [ECE(), AECE(), CalibrationMetric('NLL')]

    def process(sample):
        for metric in metrics:
            metric.process(None, [sample])

    return process


def torchmetrics_ece(num_classes):
    module = importlib.import_module('torchmetrics.classification')
    metric = module.MulticlassCalibrationError(num_classes, n_bins=15, ignore_index=255)

    def update(sample):
        metric.update(sample['seg_logits']['data'][None], sample['gt_sem_seg']['data'])

    update.metric = metric
    return update


def mmseg_miou(num_classes):
    metric = importlib.import_module('mmseg.evaluation').IoUMetric()
    metric.dataset_meta = {'classes': [str(k) for k in range(num_classes)]}
    return lambda sample: metric.process(None, [sample])


def contenders(num_classes):
    """Return the installed contenders, by name."""
    found = {}
    for name, build in {
        'max and logsumexp': lambda: floor,
        'mmcalib: ECE': lambda: ours('ECE'),
        'mmcalib: ECE, AECE, NLL': lambda: ours('ECE', 'AECE', 'NLL'),
        'mmcalib: the same as three metrics': ours_one_by_one,
        'mmcalib: ECE, AECE, NLL, Brier, ClasswiseECE': lambda: ours(*EVERY),
        'mmcalib: ECE, AECE, NLL, refinement_NLL': lambda: ours(*EVERY[:3], 'refinement_NLL'),
        'torchmetrics: ECE': lambda: torchmetrics_ece(num_classes),
        'mmseg: IoUMetric': lambda: mmseg_miou(num_classes),
    }.items():
        try:
            found[name] = build()
        except ImportError as error:
            print(f'{name} is left out: {error}')
    return found


def times(size, rounds, clock):
    """Return the best seconds of each contender on images of a size."""
    samples = [draw(seed, size) for seed in range(2)]
    runs = contenders(int(size.split('x')[0]))
    best = dict.fromkeys(runs, float('inf'))
    for number in range(rounds + 8):  # the first ones warm up, and fill the exact cells of AECE
        for name, run in runs.items():
            sample = samples[number % 2]
            start = clock()
            run(sample)
            if number >= 8:
                best[name] = min(best[name], clock() - start)
            if hasattr(run, 'metric'):
                run.metric.reset()  # it keeps every pixel
    return best


def resident():
    """Return the MiB that this process holds."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def growth_of_images(names, options, size, counts):
    """Return the growth of a metric's process after so many images."""
    samples, run = [draw(seed, size) for seed in range(4)], ours(*names, **options)
    floor(samples[0])
    before, grown = resident(), []
    for number in range(1, max(counts) + 1):
        run(samples[number % 4])
        if number in counts:
            grown.append(resident() - before)
    return grown


def growth_of_classifier(num_classes, count):
    """Return the MiB, and the seconds of CPU, of a classifier's samples and their evaluation."""
    metric = CalibrationMetric(EVERY)
    generator = torch.Generator().manual_seed(0)
    scores = torch.softmax(4 * torch.randn(BATCH, num_classes, generator=generator), dim=1)
    before, start = resident(), time.process_time()
    for first in range(0, count, BATCH):
        labels = torch.arange(first, min(first + BATCH, count)) % num_classes
        pairs = zip(scores, labels, strict=False)
        metric.process(None, [{'pred_score': score, 'gt_label': label} for score, label in pairs])
    metric.evaluate(count)
    return resident() - before, time.process_time() - start


def share_of_run(config, limit, options):
    """Return the seconds of CPU of a test with random weights, and those of its metrics of ours."""
    cfg = load_config(config, options)
    limit_samples(cfg, limit)
    cfg.launcher = 'none'
    cfg.test_dataloader.update(num_workers=0, persistent_workers=False)
    if cfg.model.get('backbone', {}).get('init_cfg'):
        cfg.model.backbone.init_cfg = None
    set_loader_defaults(cfg)
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder
        runner, spent = build_runner(cfg), [0.0]
        for metric in runner.test_evaluator.metrics:
            if isinstance(metric, CalibrationMetric):
                for name in ('process', 'evaluate'):
                    setattr(metric, name, timed(getattr(metric, name), spent))
        start = time.process_time()
        runner.test()
        return time.process_time() - start, spent[0]


def timed(function, spent):
    """Return the function, which adds the seconds of CPU that it takes to `spent`."""

    def run(*args, **kwargs):
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[0] += time.process_time() - start

    return run


def alone(function, *args):
    """Run a measurement in a new process, which has no free memory of others to use."""
    context = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=12)
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument(
        '--sizes', nargs='*', default=SIZES, help='sizes of images, the first for the memory too'
    )
    parser.add_argument('--images', type=int, nargs='*', default=IMAGES, help='for the memory')
    parser.add_argument('--classifier', type=int, nargs=2, default=(10_000, 50_000),
                        metavar=('CLASSES', 'SAMPLES'), help='0 0 for none')  # fmt: skip
    parser.add_argument('--runs', nargs='*', default=(), metavar='CONFIG', help='to test instead')
    parser.add_argument('--limit', type=int, default=40, help='samples of each of them')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='for all configs')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f'torch {torch.__version__}, {args.threads} threads')
    for size in args.sizes:
        clock = time.process_time if args.threads == 1 else time.perf_counter
        best = times(size, args.rounds, clock)
        base = best['max and logsumexp']
        print(f'\n| one image of {size.replace("x", "×")} | ms | ratio |\n|---|--:|--:|')
        for name, seconds in best.items():
            print(f'| {name} | {1e3 * seconds:.1f} | {seconds / base:.2f} |', flush=True)
    if args.images:
        print(
            f'\n| MiB after so many of {SIZES[0].replace("x", "×")} |',
            ' | '.join(f'{n:,}' for n in args.images),
            '|',
        )
        print('|---|' + '--:|' * len(args.images))
        for name, (names, options) in MEMORY.items():
            grown = alone(growth_of_images, names, options, SIZES[0], tuple(args.images))
            print(f'| {name} | {" | ".join(f"{size:.0f}" for size in grown)} |', flush=True)
    if args.runs:
        print('\n| a whole test | seconds of CPU | of the calibration metrics | share |')
        print('|---|--:|--:|--:|')
    for config in args.runs:
        total, own = alone(share_of_run, config, args.limit, args.cfg_options)
        share = f'{100 * own / total:.1f} %'
        print(f'| {config}, {args.limit} samples | {total:.1f} | {own:.2f} | {share} |', flush=True)
    if all(args.classifier):
        size, seconds = alone(growth_of_classifier, *args.classifier)
        print('\n| classifier | MiB | seconds of CPU |\n|---|--:|--:|')
        classes, samples = args.classifier
        print(f'| {samples:,} samples of {classes:,} classes | {size:.0f} | {seconds:.0f} |')


if __name__ == '__main__':
    main()
