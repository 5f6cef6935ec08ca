"""Time and memory of every loss, forward and backward, as ratios to F.cross_entropy in one run.

    python tools/benchmarks/losses.py
    OMP_NUM_THREADS=1 python tools/benchmarks/losses.py --cpu-seconds  # on a busy machine
    python tools/benchmarks/losses.py --device cuda --dtype bfloat16 --sizes 8x21x512x512

Contenders take turns; each time is the best of its rounds. Memory is the peak that a step allocates
beyond the logits and the target, so that of the gradient is in it. Run it on a quiet machine.
Losses that need a map of labels are left out where there is none.
"""

import argparse
import functools
import time
import warnings

import torch
import torch.nn.functional as F

from mmcalib.losses import (
    ACLSLoss,
    AdaFocalLoss,
    BrierLoss,
    BSCELoss,
    CALSLoss,
    ConfidencePenaltyLoss,
    DualFocalLoss,
    InverseFocalLoss,
    L1ACELoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
    MDCALoss,
    NACLLoss,
    SampleDependentFocalLoss,
    SoftmaxFocalLoss,
    SVLSLoss,
)


def flat(logits, target):
    """Return ``(M, K)`` logits and ``(M,)`` labels, copied as the published code copies them."""
    if logits.ndim > 2:
        logits = logits.flatten(2).transpose(1, 2).contiguous().view(-1, logits.shape[1])
    return logits, target.flatten()


# The arithmetic of the paper's published code, plainly. That of FLSD is a Python loop per sample.
def published_mbls(logits, target, margin=10.0, alpha=0.1):
    logits, target = flat(logits, target)
    highest = logits.max(dim=1)[0].unsqueeze(1).repeat(1, logits.shape[1])
    return F.cross_entropy(logits, target) + alpha * F.relu(highest - logits - margin).mean()


def published_mbls_m0(logits, target):
    return published_mbls(logits, target, margin=0.0, alpha=0.05)


def published_ls(logits, target, alpha=0.05):
    logits, target = flat(logits, target)
    log_probs = F.log_softmax(logits, dim=1)
    one_hot = torch.zeros_like(log_probs).scatter_(1, target.unsqueeze(1), 1)
    smooth = (1 - alpha) * one_hot + alpha / logits.shape[1]
    return (-smooth * log_probs).sum(dim=1).mean()


def published_fl(logits, target, gamma=3.0):
    logits, target = flat(logits, target)
    log_prob = F.log_softmax(logits, dim=1).gather(1, target.unsqueeze(1)).view(-1)
    return (-((1 - log_prob.exp()) ** gamma) * log_prob).mean()


def published_ecp(logits, target, alpha=0.1):
    logits, target = flat(logits, target)
    entropy = (-F.softmax(logits, dim=1) * F.log_softmax(logits, dim=1)).mean()
    return F.cross_entropy(logits, target) - alpha * entropy


LOSSES = {
    'MbLS (m=10)': (functools.partial(MarginLabelSmoothingLoss, margin=10.0), published_mbls),
    'MbLS (m=0)': (
        functools.partial(MarginLabelSmoothingLoss, margin=0.0, alpha=0.05),
        published_mbls_m0,
    ),
    'LS': (LabelSmoothingLoss, published_ls),
    'FL': (SoftmaxFocalLoss, published_fl),
    'FLSD': (SampleDependentFocalLoss, None),
    'ECP': (ConfidencePenaltyLoss, published_ecp),
    'Brier': (BrierLoss, None),
    'DFL': (DualFocalLoss, None),
    'IFL': (InverseFocalLoss, None),
    'BSCE': (BSCELoss, None),
    'ACLS': (ACLSLoss, None),
    'CALS': (CALSLoss, None),
    'AdaFocal': (AdaFocalLoss, None),
    'SVLS': (SVLSLoss, None),
    'NACL': (NACLLoss, None),
    'MDCA, alone': (MDCALoss, None),
    'mL1-ACE, alone': (L1ACELoss, None),
}
NOT_COMPILED = ('MDCA, alone', 'mL1-ACE, alone')
OF_LABEL_MAPS = ('SVLS', 'NACL')


def step(loss, logits, target):
    logits.grad = None
    loss(logits, target).backward()


def best_times(contenders, logits, target, rounds, clock):
    """Return the best seconds of a step by name, the contenders taking turns."""
    synchronize = torch.cuda.synchronize if logits.is_cuda else lambda: None
    best = dict.fromkeys(contenders, float('inf'))
    for _ in range(rounds):
        for name, loss in contenders.items():
            synchronize()
            start = clock()
            step(loss, logits, target)
            synchronize()
            best[name] = min(best[name], clock() - start)
    return best


def peak_bytes(loss, logits, target):
    """Return the most that a step has allocated at any moment."""
    logits.grad = None
    if logits.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, logits, target)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        step(loss, logits, target)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == '[memory]']
    # PyTorch before 2.4 has microseconds.
    start = 'start_ns' if hasattr(events[0], 'start_ns') else 'start_us'
    allocated = peak = 0
    for event in sorted(events, key=lambda event: getattr(event, start)()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def measure(size, name, args):
    """Return the row of the table of one loss at one size."""
    loss, published = LOSSES[name]
    torch.manual_seed(0)
    logits = (4 * torch.randn(size, device=args.device)).to(getattr(torch, args.dtype))
    logits.requires_grad_()
    target = torch.randint(size[1], (size[0], *size[2:]), device=args.device)
    contenders = {'cross-entropy': F.cross_entropy}
    if published is not None:
        contenders['published'] = published
    options = dict(num_classes=size[1]) if loss is CALSLoss else {}
    contenders['eager'] = loss(**options)
    if name not in NOT_COMPILED:
        contenders['compiled'] = loss(**options, compile=True)
    for contender in contenders.values():
        if isinstance(contender, torch.nn.Module):
            contender.to(args.device)
    torch.compiler.reset()  # no shape profits from another's kernel, nor suffers from its limits
    for contender in contenders.values():
        for _ in range(3):
            step(contender, logits, target)
    clock = time.process_time if args.cpu_seconds else time.perf_counter
    times = best_times(contenders, logits, target, args.rounds, clock)
    memory = {name: peak_bytes(contender, logits, target) for name, contender in contenders.items()}

    base, base_memory = times['cross-entropy'], memory['cross-entropy']
    row = [f'{1e3 * base:.1f}']
    if args.bandwidth:
        moved = 2 * logits.numel() * logits.element_size() / (args.bandwidth * 1e9)
        row.append(f'{times["compiled"] / moved:.2f}' if 'compiled' in times else '–')
    for name in ('published', 'eager', 'compiled'):
        row.append(f'{times[name] / base:.2f}' if name in times else '–')
    row.append(f'{base_memory / 2**20:.1f}')
    for name in ('published', 'eager', 'compiled'):
        row.append(f'{memory[name] / base_memory:.2f}' if name in memory else '–')
    return row


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        default=['4x21x256x256', '2x150x256x256', '4096x1000'],
        help='shapes of the logits (default: %(default)s)',
    )
    parser.add_argument('--losses', nargs='+', choices=LOSSES, default=list(LOSSES))
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument(
        '--cpu-seconds',
        action='store_true',
        help='measure the seconds of a CPU, on one thread, which other processes disturb less',
    )
    parser.add_argument(
        '--bandwidth',
        type=float,
        metavar='GB/s',
        help='also print the compiled time over that of moving logits and gradient once',
    )
    return parser.parse_args()


def main():
    args = parse_args()
    warnings.filterwarnings('ignore', message='.*non-leaf.*')
    print(f'torch {torch.__version__}, {args.device}, {args.dtype}, ', end='')
    print(f'{torch.get_num_threads()} threads; times and memory relative to F.cross_entropy\n')
    columns = ['size', 'loss', 'CE (ms)']
    columns += ['compiled / bandwidth'] if args.bandwidth else []
    columns += ['published', 'eager', 'compiled']
    columns += ['CE (MiB)', 'published mem.', 'eager mem.', 'compiled mem.']
    print('| ' + ' | '.join(columns) + ' |')
    print('| ' + ' | '.join(['---', '---'] + ['---:'] * (len(columns) - 2)) + ' |')
    for size in args.sizes:
        shape = tuple(map(int, size.split('x')))
        for name in args.losses:
            if name in OF_LABEL_MAPS and len(shape) < 4:
                continue
            row = measure(shape, name, args)
            print('| ' + ' | '.join([size.replace('x', '×'), name, *row]) + ' |', flush=True)


if __name__ == '__main__':
    main()
