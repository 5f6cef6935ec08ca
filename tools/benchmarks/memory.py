"""Memory and time of a CalibrationMetric in a loop over segmented images whose results are kept.

    export OMP_NUM_THREADS=1
    python tools/benchmarks/memory.py
    python tools/benchmarks/memory.py --images 1000 --size 150x256x256

The process prints by how many MB it grows from the tenth image on, and the CPU time of a
measurement as a ratio to that of a max and a logsumexp over the same logits.
"""

import argparse
import time
from pathlib import Path

import torch

from mmcalib.openmmlab.metrics import CalibrationMetric

FIRST = 10  # After these images the allocator has what one image needs.


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--images', type=int, default=1000)
    parser.add_argument('--size', default='21x375x500', help='classes, height, width')
    parser.add_argument('--metrics', nargs='+', default=['ECE', 'AECE', 'NLL'])
    args = parser.parse_args()
    if args.images <= FIRST:
        parser.error(f'--images must be above {FIRST}, got {args.images}')
    shape = tuple(map(int, args.size.split('x')))
    generator = torch.Generator().manual_seed(0)
    base = 3 * torch.randn(shape, generator=generator)
    label = torch.randint(shape[0], shape[1:], generator=generator)
    metric = CalibrationMetric(args.metrics)
    measuring = 0.0
    reading = 0.0
    for index in range(args.images):
        if index == FIRST:
            start = resident_megabytes()
        logits = base + 0.001 * index
        sample = {
            'seg_logits': {'data': logits},
            'pred_sem_seg': {'data': logits.argmax(dim=0)[None]},
            'gt_sem_seg': {'data': label[None]},
            'img_path': f'{index}.jpg',
        }
        began = time.process_time()
        metric.process(None, [sample])
        measuring += time.process_time() - began
        began = time.process_time()
        logits.max(dim=0)
        logits.logsumexp(dim=0)
        reading += time.process_time() - began
    growth = resident_megabytes() - start
    print(f'{args.images} images of {args.size}, {" ".join(args.metrics)}')
    print(f'growth of the process  {growth:8.0f} MB')
    print(f'a measurement          {1000 * measuring / args.images:8.1f} ms')
    print(f'max and logsumexp      {1000 * reading / args.images:8.1f} ms')
    print(f'ratio                  {measuring / reading:8.2f}')


def resident_megabytes() -> float:
    """Return the memory of this process that lies in RAM, on Linux."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmRSS'):
            return int(line.split()[1]) / 1024
    raise RuntimeError('/proc/self/status has no VmRSS')


if __name__ == '__main__':
    main()
