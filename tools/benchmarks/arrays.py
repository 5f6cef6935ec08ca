"""Time and memory of metrics of arrays and of streams, beside torchmetrics.

    OMP_NUM_THREADS=1 python tools/benchmarks/arrays.py --memory
    OMP_NUM_THREADS=1 python tools/benchmarks/arrays.py map --size 150x256x256

- map: a map of many classes; --size is classes, height, width
- rows: the predictions of a classifier; --size is rows, classes
- stream: batch after batch of them, then the metrics; --size is batches, rows, classes

Contenders take turns, so that a busy machine slows all of them; each time is CPU time, the best of
its rounds. Memory is what the peak of a process of its own rises by while it computes, beyond the
arrays. `evaluate` reads logits, so torchmetrics does, too, in the row above it. torchmetrics has no
AECE, NLL or Brier score; five metrics of mmcalib are beside one of torchmetrics.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import torch

import mmcalib
from mmcalib.cli.parser import ToolParser
from mmcalib.metrics import StreamingMetrics
from mmcalib.tables import TextTable

SIZES = {'map': '21x512x512', 'rows': '50000x1000', 'stream': '200x256x1000'}
SMALL_SIZES = {'map': '2x8x8', 'rows': '8x2', 'stream': '2x8x2'}
FIVE_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('kinds', nargs='*', metavar='KIND', help='default: map rows stream')
    parser.add_argument('--size', help='in place of that of the kind')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--memory', action='store_true', help='measure memory, too (Linux)')
    parser.add_argument('--memory-of', help='print the memory of one contender, in MB')
    args = parser.parse_args()
    unknown = set(args.kinds) - set(SIZES)
    if unknown:
        parser.error(f'KIND is one of {", ".join(SIZES)}, not {", ".join(unknown)}')
    torch.set_num_threads(1)
    for kind in args.kinds or SIZES:
        size = args.size or SIZES[kind]
        contenders = make_contenders(kind, size)
        if args.memory_of:
            make_contenders(kind, SMALL_SIZES[kind])[args.memory_of]()  # This imports.
            print(measure_memory(contenders[args.memory_of]))
        else:
            print_table(kind, size, contenders, args)


def print_table(kind, size, contenders, args):
    """Print the time of each contender, its ratio to the first, and its memory if asked for."""
    seconds = dict.fromkeys(contenders, float('inf'))
    for _ in range(args.rounds):
        for name, contender in contenders.items():
            start = time.process_time()
            contender()
            seconds[name] = min(seconds[name], time.process_time() - start)
    reference = seconds['torchmetrics: ECE']
    rows = []
    for name in contenders:
        row = [name, f'{1000 * seconds[name]:.1f}', f'{seconds[name] / reference:.2f}']
        if args.memory:
            row.append(memory_in_own_process(kind, size, name))
        rows.append(row)
    headings = [f'{kind}, {size}', 'ms', 'ratio']
    if args.memory:
        headings.append('MB')
    print(f'\n{TextTable(headings, rows).write("markdown")}', flush=True)


def memory_in_own_process(kind, size, name):
    """Return the memory of a contender, in MB, as it prints it in a process of its own."""
    command = [sys.executable, __file__, kind, '--size', size, '--memory-of', name]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return f'{float(result.stdout.split()[-1]):.0f}'


def make_contenders(kind, size):
    """Return a function for each contender, by its name."""
    torch.manual_seed(0)
    numbers = [int(number) for number in size.split('x')]
    if kind == 'stream':
        return stream_contenders(*numbers)
    if kind == 'map':
        num_classes, *image_shape = numbers
        return array_contenders(1, num_classes, *image_shape)
    return array_contenders(*numbers)


def array_contenders(num_rows, num_classes, *image_shape):
    """Contenders of one array of scores."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    logits = 3 * torch.randn(num_rows, num_classes, *image_shape)
    probs = logits.softmax(dim=1)
    labels = torch.randint(num_classes, (num_rows, *image_shape))
    model = torch.nn.Identity()

    def torchmetrics_ece(scores):
        return multiclass_calibration_error(scores, labels, num_classes, n_bins=15, norm='l1')

    return {
        'torchmetrics: ECE': lambda: torchmetrics_ece(probs),
        'measure: ECE': lambda: mmcalib.measure(probs, labels, 'ECE'),
        'measure: five metrics': lambda: mmcalib.measure(probs, labels, FIVE_METRICS),
        'torchmetrics: ECE of logits': lambda: torchmetrics_ece(logits),
        'evaluate: ECE of logits': lambda: mmcalib.evaluate(model, [(logits, labels)], 'ECE'),
    }


def stream_contenders(num_batches, num_rows, num_classes):
    """Contenders that see one batch of logits after another."""
    from torchmetrics.classification import MulticlassCalibrationError

    logits = 3 * torch.randn(num_batches, num_rows, num_classes)
    labels = torch.randint(num_classes, (num_batches, num_rows))

    def torchmetrics_ece():
        metric = MulticlassCalibrationError(num_classes, n_bins=15, norm='l1')
        for scores, classes in zip(logits, labels, strict=True):
            metric.update(scores, classes)
        return metric.compute()

    def ours(names):
        metric = StreamingMetrics(names)
        for scores, classes in zip(logits, labels, strict=True):
            metric.update(scores, classes)
        return metric.compute()

    return {
        'torchmetrics: ECE': torchmetrics_ece,
        'StreamingMetrics: ECE': lambda: ours('ECE'),
        'StreamingMetrics: five metrics': lambda: ours(FIVE_METRICS),
    }


def measure_memory(contender):
    """Return by how many MB the peak of this process rises while a contender computes (Linux)."""
    Path('/proc/self/clear_refs').write_text('5')  # This sets the peak to what is resident now.
    before = read_peak()
    contender()
    return (read_peak() - before) / 1024


def read_peak():
    """Return the peak of this process, in kB."""
    status = Path('/proc/self/status').read_text()
    return int(re.search(r'VmHWM:\s*(\d+)', status)[1])


if __name__ == '__main__':
    main()
