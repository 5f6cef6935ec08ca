"""CPU time and memory of whole calibrations, each in a process of its own.

    export OMP_NUM_THREADS=1
    python tools/benchmarks/calibrate.py
    python tools/benchmarks/calibrate.py --cases pixels --method vector --rounds 1

- pixels: 100 images of 2,000 pixels and 21 classes, by a temperature
- auto: the same, by the method that is chosen
- classes: 2,000 images of 30,000 classes, by a temperature

A calibration is six fits, to all data and without each of five folds, metrics before and after, and
the proof by running the model. Beside it stands the time of what nobody can do without: to evaluate
the model twice, before and after, and one fit of the same method; of auto, of a temperature. All
are the best of their rounds, which take turns. Memory is what the process grows by at most, less
the logits.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.posthoc import SCALERS

METHODS = {'pixels': 'temperature', 'auto': 'auto', 'classes': 'temperature'}
TRUE_TEMPERATURE = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--cases', nargs='+', choices=METHODS, default=list(METHODS))
    parser.add_argument('--method', choices=('auto', *SCALERS), help='in place of that of the case')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--here', action='store_true', help='in this process')
    args = parser.parse_args()
    if args.here:
        (case,) = args.cases
        measure_calibration(case, args.method or METHODS[case], args.rounds)
        return
    columns = 'CPU s | two evaluations and a fit | ratio | one fit | MB above the logits'
    print(f'| calibration | {columns} |')
    print('|---|--:|--:|--:|--:|--:|', flush=True)
    for case in args.cases:
        method = args.method or METHODS[case]
        command = [sys.executable, __file__, '--here', '--cases', case]
        command += ['--method', method, '--rounds', str(args.rounds)]
        subprocess.run(command, check=True)


def measure_calibration(case: str, method: str, rounds: int) -> None:
    """Print a row of the table."""
    network, inputs, labels = build_case(case)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=20)
    with torch.no_grad():
        logits = network(inputs)
    logits = logits.movedim(1, -1).reshape(labels.numel(), -1)
    groups = torch.arange(len(labels)).repeat_interleave(labels.numel() // len(labels))
    logit_megabytes = logits.numel() * logits.element_size() / 1e6
    fit_seconds = float('inf')
    seconds = float('inf')
    evaluation_seconds = float('inf')
    scaler_class = SCALERS.get(method, SCALERS['temperature'])
    memory = 0.0
    for _ in range(rounds):
        reset_peak()
        before = megabytes('VmRSS')
        start = time.process_time()
        mmcalib.calibrate(network, loader, method=method)
        seconds = min(seconds, time.process_time() - start)
        memory = max(memory, megabytes('VmHWM') - before - logit_megabytes)
        start = time.process_time()
        scaler_class().fit(logits, labels.flatten(), groups)
        fit_seconds = min(fit_seconds, time.process_time() - start)
        start = time.process_time()
        mmcalib.evaluate(network, loader)
        evaluation_seconds = min(evaluation_seconds, time.process_time() - start)
    least = 2 * evaluation_seconds + fit_seconds
    print(
        f'| {case}, {method} | {seconds:.2f} | {least:.2f} | {seconds / least:.1f} | '
        f'{fit_seconds:.2f} | {memory:.0f} |',
        flush=True,
    )


def build_case(case: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network with logits that are too large, inputs and labels."""
    generator = torch.Generator().manual_seed(0)
    if case == 'classes':
        network = nn.Linear(64, 30_000)
        inputs = torch.randn(2000, 64, generator=generator)
        weight_size = 0.5
    else:
        network = nn.Conv2d(24, 21, 1)
        noise = torch.randn(100, 24, 40, 50, generator=generator)
        inputs = 5 * nn.functional.avg_pool2d(noise, kernel_size=5, stride=1, padding=2)
        weight_size = 0.6
    labels = []
    with torch.no_grad():
        network.weight.copy_(weight_size * torch.randn(network.weight.shape, generator=generator))
        network.bias.zero_()
        for batch in inputs.split(50):
            logits = network(batch).movedim(1, -1)
            probs = (logits / TRUE_TEMPERATURE).flatten(0, -2).softmax(dim=1)
            drawn = torch.multinomial(probs, 1, generator=generator)
            labels.append(drawn.view(logits.shape[:-1]))
    return network.eval(), inputs, torch.cat(labels)


def megabytes(name: str) -> float:
    """Return a size of this process on Linux: VmRSS, or its peak VmHWM."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f'/proc/self/status has no {name}')


def reset_peak() -> None:
    """Let the peak of the memory of this process begin anew, on Linux."""
    Path('/proc/self/clear_refs').write_text('5')


if __name__ == '__main__':
    main()
