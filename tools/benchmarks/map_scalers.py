"""Scalings of a segmentor's logits, fitted on its validation split and measured on its test split.

    python tools/benchmarks/map_scalers.py CONFIG CHECKPOINT

NLL, ECE, the ECE within three pixels of a boundary of the labels, and the mIoU are of all valid
pixels of the test split. Time and memory are those of fitting, memory beyond what is in use before
(by Linux's peak of the resident size). Where fiducio is installed (pip install fiducio), its CMSap
comes last: the same map as 'class-conditional', as it comes: 200 steps of Adam
without a penalty.
"""

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import torch
from mmengine.runner import Runner

from mmcalib.metrics import CalibrationMetric
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.model_logits import predictor, progress
from mmcalib.posthoc.sampled_maps import NUM_VALUES, draw_maps
from mmcalib.runs.config import load_config, set_loader_defaults

NAMES = ('temperature', 'class-temperatures', 'class-conditional', 'boundary-temperatures', 'local')


def rows_of(logits, labels, images, ignore_index):
    """Return the logits (M, K), labels (M,) and images (M,) of the valid pixels of maps."""
    pixels = [y != ignore_index for y in labels]
    rows = torch.cat([z[:, valid].T for z, valid in zip(logits, pixels, strict=True)])
    truth = torch.cat([y[valid] for y, valid in zip(labels, pixels, strict=True)])
    return rows, truth, images.repeat_interleave(torch.tensor([v.sum() for v in pixels]))


class Fiducio:
    """Fiducio's argmax-preserving scaling in the terms of ours."""

    def __init__(self):
        fiducio = import_module('fiducio')
        self.scaler = fiducio.ArgmaxPreservingMatrixScaling(ignore_index=-1)

    def fit(self, logits, labels, images, *, ignore_index):
        self.scaler.fit(*rows_of(logits, labels, images, ignore_index)[:2])

    def transform(self, logits):
        return self.scaler.decision_function(logits)


class Rows:
    """A scaling of rows fitted to maps of any sizes."""

    def __init__(self, scaler):
        self.scaler = scaler

    def transform(self, logits):
        return self.scaler.transform(logits)

    def fit(self, logits, labels, images, *, ignore_index):
        self.scaler.fit(*rows_of(logits, labels, images, ignore_index))


class Measured:
    """The figures of one scaling on the test split."""

    def __init__(self, num_classes, ignore_index):
        options = dict(ignore_index=ignore_index)
        self.pooled = CalibrationMetric(('NLL', 'ECE'), **options)
        self.near = CalibrationMetric(('ECE',), protocol='boundary', **options)
        self.confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.ignore_index = ignore_index
        self.images = 0

    def add(self, sample, logits):
        predicted = logits.argmax(dim=0, keepdim=True)
        sample = {**sample, 'seg_logits': {'data': logits}, 'pred_sem_seg': {'data': predicted}}
        for metric in (self.pooled, self.near):
            metric.process(None, [sample])
        self.images += 1
        label = sample['gt_sem_seg']['data'].to(predicted.device)
        valid = label != self.ignore_index
        size = len(self.confusion)
        pairs = (size * label[valid] + predicted[valid]).cpu().bincount(minlength=size**2)
        self.confusion += pairs.reshape(size, size)

    def figures(self):
        pooled, near = (metric.evaluate(self.images) for metric in (self.pooled, self.near))
        hits = self.confusion.diagonal()
        union = self.confusion.sum(0) + self.confusion.sum(1) - hits
        iou = 100 * (hits / union)[union > 0].mean().item()
        return [
            f'{pooled["calibration/NLL"]:.4f}', f'{pooled["calibration/ECE"]:.2f}',
            f'{near["calibration/ECE"]:.2f}', f'{iou:.2f}',
        ]  # fmt: skip


def resident(key):
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def fit(scaler, drawn):
    """Return the fitted scaler, seconds and MB."""
    Path('/proc/self/clear_refs').write_text('5')  # the largest resident size starts from here
    before, start = resident('VmRSS'), time.perf_counter()
    scaler.fit(drawn.logits, drawn.labels, drawn.images, ignore_index=drawn.ignore_index)
    return scaler, time.perf_counter() - start, resident('VmHWM') - before


def contenders():
    for name in NAMES:
        scaler = SCALERS[name]()
        yield name, scaler if scaler.needs_maps else Rows(scaler)
    if find_spec('fiducio'):
        yield 'fiducio, CMSap', Fiducio()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--values', type=int, default=NUM_VALUES, help='of the maps fitted to')
    parser.add_argument('--seed', type=int, default=0, help='of the maps drawn')
    args = parser.parse_args()
    torch.set_num_threads(1)

    cfg = load_config(args.config, {'load_from': args.checkpoint})
    set_loader_defaults(cfg)
    cfg.log_level = 'WARNING'
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder
        runner = Runner.from_cfg(cfg)
        val, test = runner.val_loop.dataloader, runner.test_loop.dataloader
        runner.load_or_resume()
        drawn = draw_maps(runner.model, val, num_values=args.values, seed=args.seed)
        fitted, costs = {}, {'none': ['', '']}
        for name, scaler in contenders():
            # In a process of its own, whose memory no other has used.
            with ProcessPoolExecutor(1, get_context('fork')) as pool:
                fitted[name], seconds, memory = pool.submit(fit, scaler, drawn).result()
            costs[name] = [f'{seconds:.1f} s', f'{memory:.0f} MB']
            print(name, *costs[name], flush=True)
        num_classes = len(drawn.logits[0])
        measured = {name: Measured(num_classes, drawn.ignore_index) for name in costs}
        with predictor(runner.model) as predict:
            for batch in progress(test, 'Test'):
                for image in predict(batch):
                    measured['none'].add(image.sample, image.logits)
                    for name, scaler in fitted.items():
                        scaled = scaler.transform(image.logits[None])[0]
                        measured[name].add(image.sample, scaled)
    pixels = sum(int((y != drawn.ignore_index).sum()) for y in drawn.labels)
    print(f'\n{len(drawn.logits)} maps with {pixels} valid pixels to fit on\n')
    print('| scaling | NLL | ECE | near a boundary | mIoU | time to fit | memory |')
    print('|---|--:|--:|--:|--:|--:|--:|')
    for name, own in measured.items():
        print('| ' + ' | '.join([name, *own.figures(), *costs[name]]) + ' |')


if __name__ == '__main__':
    main()
