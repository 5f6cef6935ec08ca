"""Time and memory of metrics of arrays, beside torchmetrics, on one map of many classes.

    OMP_NUM_THREADS=1 python tools/benchmarks/arrays.py --memory
    OMP_NUM_THREADS=1 python tools/benchmarks/arrays.py --size 150x256x256

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
from mmcalib.tables import TextTable

FIVE_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('--size', default='21x512x512', help='classes, height, width')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--memory', action='store_true', help='measure memory, too (Linux)')
    parser.add_argument('--memory-of', help='print the memory of one contender, in MB')
    args = parser.parse_args()
    torch.set_num_threads(1)
    contenders = make_contenders(*map(int, args.size.split('x')))
    if args.memory_of:
        make_contenders(num_classes=2, height=8, width=8)[args.memory_of]()  # This imports.
        print(measure_memory(contenders[args.memory_of]))
        return
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
            row.append(memory_in_own_process(args.size, name))
        rows.append(row)
    headings = [args.size, 'ms', 'ratio']
    if args.memory:
        headings.append('MB')
    print(TextTable(headings, rows).write('markdown'))


def memory_in_own_process(size, name):
    """Return the memory of a contender, in MB, as it prints it in a process of its own."""
    command = [sys.executable, __file__, '--size', size, '--memory-of', name]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return f'{float(result.stdout.split()[-1]):.0f}'


def make_contenders(num_classes, height, width):
    """Return a function for each contender, by its name."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.manual_seed(0)
    logits = 3 * torch.randn(1, num_classes, height, width)
    probs = logits.softmax(dim=1)
    labels = torch.randint(num_classes, (1, height, width))
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
