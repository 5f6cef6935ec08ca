"""Time and memory of the calibration metrics, beside torchmetrics and mmseg, in one run.

    python tools/benchmarks/metrics.py

Times are of one image of 21 classes and 375×500 pixels, as ratios to one `max` and one `logsumexp`
over its logits; contenders take turns, and each time is the best of its rounds. Memory is what a
process grows by after the first 8 images, on Linux. Run it on a quiet machine; torchmetrics and
mmseg are optional.
"""

import argparse
import importlib
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from mmcalib.metrics import CalibrationMetric

IMAGES, CLASSES, SIZE = 1449, 21, (375, 500)


def draw(seed, num_classes=CLASSES, size=SIZE):
    """Return a sample of mmseg's: patches of labels, and logits of which most are very sure."""
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


def ours(*names):
    metric = CalibrationMetric(names)
    return lambda sample: metric.process(None, [sample])


def ours_all():
    return ours('ECE', 'AECE', 'NLL')


def torchmetrics_ece():
    module = importlib.import_module('torchmetrics.classification')
    metric = module.MulticlassCalibrationError(CLASSES, n_bins=15, ignore_index=255)

    def update(sample):
        metric.update(sample['seg_logits']['data'][None], sample['gt_sem_seg']['data'])

    update.metric = metric
    return update


def mmseg_miou():
    metric = importlib.import_module('mmseg.evaluation').IoUMetric()
    metric.dataset_meta = {'classes': [str(k) for k in range(CLASSES)]}
    return lambda sample: metric.process(None, [sample])


CONTENDERS = {
    'max and logsumexp': lambda: floor,
    'mmcalib: ECE': lambda: ours('ECE'),
    'mmcalib: ECE, AECE, NLL': ours_all,
    'mmcalib: ECE, AECE, NLL, Brier, ClasswiseECE': lambda: ours(
        'ECE', 'AECE', 'NLL', 'Brier', 'ClasswiseECE'
    ),
    'torchmetrics: ECE': torchmetrics_ece,
    'mmseg: IoUMetric': mmseg_miou,
}


def times(rounds):
    """Return the best seconds of each contender that is installed."""
    contenders = {}
    for name, build in CONTENDERS.items():
        try:
            contenders[name] = build()
        except ImportError as error:
            print(f'{name} is left out: {error}')
    sample = draw(0)
    best = dict.fromkeys(contenders, float('inf'))
    for number in range(rounds + 8):  # the first ones warm up, and fill the exact cells of AECE
        for name, run in contenders.items():
            start = time.perf_counter()
            run(sample)
            if number >= 8:
                best[name] = min(best[name], time.perf_counter() - start)
            if hasattr(run, 'metric'):
                run.metric.reset()  # it keeps every pixel
    return best


def growth(run, repeats):
    """Return the MiB by which a contender's calls make the process grow."""

    def resident():
        pages = int(Path('/proc/self/statm').read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    for number in range(8):
        run(number)
    before = resident()
    for number in range(8, repeats):
        run(number)
    return resident() - before


def growth_of_images(build, images):
    samples, run = [draw(seed) for seed in range(4)], build()
    return growth(lambda number: run(samples[number % 4]), images)


def growth_of_classes():
    metric = CalibrationMetric(['ECE', 'AECE', 'ClasswiseECE'])
    generator = torch.Generator().manual_seed(0)
    scores = torch.softmax(4 * torch.randn(64, 1000, generator=generator), dim=1)

    def run(number):
        label = torch.tensor([number % 1000])
        metric.process(None, [{'pred_score': scores[number % 64], 'gt_label': label}])
        if number == 49_999:
            metric.evaluate(50_000)

    return growth(run, 50_000)


def alone(function, *args):
    """Run a measurement in a new process, which has no free memory of others to use."""
    context = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def memory(images):
    """Yield what was measured, and its growth in MiB."""
    name = 'ECE, AECE, NLL'
    yield f'mmcalib: {name} of {images:,} images', alone(growth_of_images, ours_all, images)
    yield 'mmcalib: ECE, AECE, ClasswiseECE of 50,000 × 1,000 classes', alone(growth_of_classes)
    try:
        part = alone(growth_of_images, torchmetrics_ece, 108)
    except ImportError:
        return
    yield f'torchmetrics: ECE of {images:,} images, extrapolated from 100', part * images / 100


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument('--images', type=int, default=IMAGES, help='for the memory; 0 for none')
    args = parser.parse_args()
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads\n')
    best = times(args.rounds)
    base = best['max and logsumexp']
    print(f'| one image of {CLASSES}×{SIZE[0]}×{SIZE[1]} | ms | ratio |\n|---|--:|--:|')
    for name, seconds in best.items():
        print(f'| {name} | {1e3 * seconds:.1f} | {seconds / base:.2f} |')
    if args.images:
        print('\n| memory | MiB |\n|---|--:|')
        for name, size in memory(args.images):
            print(f'| {name} | {size:.0f} |', flush=True)


if __name__ == '__main__':
    main()
