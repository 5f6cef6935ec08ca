"""Time and memory of a head's loss with FusedUpsamplingHook and without, by mmseg's cross-entropy.

    python tools/benchmarks/upsampling.py --threads 1

A step is the head's `loss_by_feat` of small logits, with `acc_seg`, and the gradient by them. Times
are ratios to mmseg's CrossEntropyLoss without the hook; contenders take turns, and each time is the
best of its rounds, of CPU time where there is one thread. Memory is what a step adds to the largest
resident size of a process of its own, on Linux; on a GPU, to what is allocated.
"""

import argparse
import multiprocessing
import time
import types
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from mmengine.structures import PixelData
from mmseg.models.decode_heads import FCNHead
from mmseg.structures import SegDataSample

import mmcalib  # noqa: F401
from mmcalib.hooks.fused_upsampling_hook import fused_loss_by_feat

LOSSES = {
    'cross-entropy (mmseg)': [dict(type='CrossEntropyLoss')],
    'MbLS (m=10)': [dict(type='MarginLabelSmoothingLoss')],
    'LS': [dict(type='LabelSmoothingLoss')],
    'FL': [dict(type='SoftmaxFocalLoss')],
    'FLSD': [dict(type='SampleDependentFocalLoss')],
    'ECP': [dict(type='ConfidencePenaltyLoss')],
    'Brier': [dict(type='BrierLoss')],
    'DFL': [dict(type='DualFocalLoss')],
}
# How a head computes its loss: with the hook or without, its losses compiled or eager.
WAYS = {'plain': (False, False), 'fused': (True, False), 'fused, compiled': (True, True)}
BASE = 'cross-entropy (mmseg)', 'plain'


def ways(name):
    """Return the ways of a loss that there are; the base has no other."""
    return [BASE[1]] if name == BASE[0] else list(WAYS)


def head_of(name, way, num_classes):
    fused, compiled = WAYS[way]
    losses = [dict(loss, compile=True) if compiled else loss for loss in LOSSES[name]]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        options = dict(num_convs=0, concat_input=False, num_classes=num_classes)
        head = FCNHead(in_channels=8, channels=8, loss_decode=losses, **options)
    if fused:
        head.loss_by_feat = types.MethodType(fused_loss_by_feat, head)
    return head


def draw(size, scale, device):
    """Return logits of a part of a size, and samples with labels of that size."""
    torch.manual_seed(0)
    images, classes, height, width = size
    logits = 4 * torch.randn(images, classes, height // scale, width // scale, device=device)
    labels = torch.randint(classes, (images, 1, height, width), device=device)
    labels[:, :, : height // 20] = 255
    samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]
    return logits.requires_grad_(), samples


def step(head, logits, samples):
    logits.grad = None
    losses = head.loss_by_feat(logits, samples)
    sum(value for name, value in losses.items() if 'loss' in name).backward()


def times(names, size, scale, device, rounds):
    """Return the best seconds of a step by loss and way."""
    cpu = device == 'cpu' and torch.get_num_threads() == 1
    clock = time.process_time if cpu else time.perf_counter
    synchronize = torch.cuda.synchronize if device != 'cpu' else lambda: None
    logits, samples = draw(size, scale, device)
    heads = {
        (name, way): head_of(name, way, size[1]).to(device) for name in names for way in ways(name)
    }
    best = dict.fromkeys(heads, float('inf'))
    for number in range(rounds + 1):  # the first one warms up and compiles
        for key, head in heads.items():
            synchronize()
            start = clock()
            step(head, logits, samples)
            synchronize()
            if number:
                best[key] = min(best[key], clock() - start)
    return best


def memory(name, way, size, scale, device):
    """Return the MiB that a step needs beyond the logits and the labels."""
    # A first step, of a smaller map, brings in what any step needs, such as a compiler.
    head = head_of(name, way, size[1]).to(device)
    step(head, *draw((1, size[1], size[2] // 8, size[3] // 8), scale, device))
    logits, samples = draw(size, scale, device)
    if device != 'cpu':
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(head, logits, samples)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path('/proc/self/clear_refs').write_text('5')  # the largest resident size starts from here
    before = largest_resident()
    step(head, logits, samples)
    return largest_resident() - before


def largest_resident():
    """Return the most MiB that this process has held."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) / 1024


def alone(threads, function, *args):
    """Run a measurement in a process of its own, a fork of this one before its first step."""
    context = multiprocessing.get_context('fork')
    # Set before the fork, torch now and then finds its threads invalid and aborts.
    own = dict(initializer=torch.set_num_threads, initargs=(threads,))
    with ProcessPoolExecutor(1, mp_context=context, **own) as pool:
        return pool.submit(function, *args).result()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--sizes', nargs='+', default=['2x150x512x512'], help='sizes of the labels')
    parser.add_argument('--scale', type=int, default=4, help='labels per logit and side')
    parser.add_argument('--losses', nargs='+', choices=LOSSES, default=list(LOSSES))
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    names = list(dict.fromkeys([BASE[0], *args.losses]))
    print(f'torch {torch.__version__}, {args.device}, {args.threads} threads')
    for size in args.sizes:
        shape = tuple(map(int, size.split('x')))
        where = shape, args.scale, args.device
        keys = [(name, way) for name in names for way in ways(name)]
        peaks = {key: alone(args.threads, memory, *key, *where) for key in keys}
        best = alone(args.threads, times, names, *where, args.rounds)
        print(
            f'\n{size.replace("x", "×")} from 1/{args.scale}: mmseg’s cross-entropy takes ', end=''
        )
        print(f'{1e3 * best[BASE]:.0f} ms and {peaks[BASE]:.0f} MiB\n')
        print('| loss |' + ''.join(f' {way} |' for way in WAYS), end='')
        print(''.join(f' memory: {way} |' for way in WAYS))
        print('|---|' + '--:|' * 2 * len(WAYS))
        for name in names:
            cells = [
                f'{of[name, way] / of[BASE]:.2f}' if (name, way) in of and of[BASE] else '–'
                for of in (best, peaks)
                for way in WAYS
            ]
            print(f'| {name} | ' + ' | '.join(cells) + ' |', flush=True)


if __name__ == '__main__':
    main()
