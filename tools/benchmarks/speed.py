"""Time and memory of losses, metrics, fused upsampling and means, as ratios within one run.

    export OMP_NUM_THREADS=1
    python tools/benchmarks/speed.py losses --cpu-seconds
    python tools/benchmarks/speed.py losses --device cuda --dtype bfloat16 --sizes 8x21x512x512
    python tools/benchmarks/speed.py metrics --cpu-seconds
    python tools/benchmarks/speed.py upsampling --cpu-seconds
    python tools/benchmarks/speed.py ensembles CONFIG CHECKPOINT OTHER.py:CHECKPOINT --cpu-seconds

- losses: a step of every loss, by F.cross_entropy
- metrics: an image, by a max and a logsumexp over its logits; kB that an image leaves, as pickled
- upsampling: a head's loss of small logits with FusedUpsamplingHook, by mmseg's cross-entropy
- ensembles: a test's step under the mean of several predictions, by that of one model

Contenders take turns, so that a busy machine slows all of them, and each time is the best of its
rounds. Memory is the most that a step allocates beyond logits and labels. On a processor that has
AVX-512, ATEN_CPU_CAPABILITY=avx2 measures with AVX2, whose ratios differ.
"""

import functools
import itertools
import pickle
import platform
import sys
import time
import types
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, METRICS, init_default_scope
from mmengine.structures import PixelData

from mmcalib import losses
from mmcalib.cli.parser import ToolParser
from mmcalib.cli.shared import ConfigOptions
from mmcalib.members import Averaging, split_members
from mmcalib.metrics.definitions import NAMES
from mmcalib.openmmlab.hooks.fused_upsampling_hook import fused_loss_by_feat
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.runs.config import load_config
from mmcalib.runs.model import prepare_model, read_networks
from mmcalib.runs.runner import build_model
from mmcalib.tables import TextTable


def best_seconds(contenders, args):
    """Return the best seconds of each contender, by name."""
    clock = time.process_time if args.cpu_seconds else time.perf_counter

    def synchronize():
        if args.device != 'cpu':
            torch.cuda.synchronize()

    best = dict.fromkeys(contenders, float('inf'))
    for number in range(-args.warmup, args.rounds):
        for name, run in contenders.items():
            synchronize()
            start = clock()
            run()
            synchronize()
            if number >= 0:
                best[name] = min(best[name], clock() - start)
    return best


def peak_bytes(run, args):
    """Return the most that a contender has allocated at any moment."""
    if args.device != 'cpu':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == '[memory]']
    # PyTorch before 2.4 has the start in microseconds only.
    start_name = 'start_ns' if hasattr(events[0], 'start_ns') else 'start_us'
    events.sort(key=lambda event: getattr(event, start_name)())
    return max(itertools.accumulate(event.nbytes() for event in events))


def ratios(values, names):
    """Return cells with the first value as it is, and the values of names as ratios to it."""
    base, *_ = values.values()
    cells = [f'{base:.3g}']
    for name in names:
        cells.append(f'{values[name] / base:.2f}' if name in values else '–')
    return cells


def print_table(headings, rows):
    print(f'\n{TextTable(headings, rows).write("markdown")}', flush=True)


def compare(args, sizes, names, ways, build_contenders):
    """Print tables of time and memory: a loss a row, a way of computing it a column.

    Args:
        args: Command line.
        sizes: Shapes of logits, a table each, where the command line has none.
        names: Names of losses where the command line has none.
        ways: Names of the contenders whose ratios to the first contender are printed.
        build_contenders: Function from name, shape and `args` to contenders by name, cross-entropy
            first; empty where the loss does not take the shape.
    """
    columns = ['CE (s)', *ways, 'CE (MiB)', *(f'memory: {way}' for way in ways)]
    for size in args.sizes or sizes:
        rows = []
        for name in args.losses or names:
            torch.manual_seed(0)
            contenders = build_contenders(name, parse_shape(size), args)
            if not contenders:
                continue
            seconds = best_seconds(contenders, args)
            memory = {way: peak_bytes(run, args) / 2**20 for way, run in contenders.items()}
            rows.append([name, *ratios(seconds, ways), *ratios(memory, ways)])
        print_table([size.replace('x', '×'), *columns], rows)


def parse_shape(size):
    return tuple(map(int, size.split('x')))


def published(logits, target, margin=10.0, alpha=0.1):
    """Return MbLS by the arithmetic of the paper's published code."""
    if logits.ndim > 2:
        logits = logits.flatten(2).transpose(1, 2).contiguous().view(-1, logits.shape[1])
    target = target.flatten()
    highest = logits.max(dim=1)[0].unsqueeze(1).repeat(1, logits.shape[1])
    return F.cross_entropy(logits, target) + alpha * F.relu(highest - logits - margin).mean()


LOSSES = {
    name: kind
    for name, kind in vars(losses).items()
    if name.endswith('Loss') and name not in ('CalibrationLoss', 'BatchLoss', 'CombinedLoss')
}
LABEL_MAP_LOSSES = ('SVLSLoss', 'NACLLoss')


def time_losses(args):
    sizes = ('4x21x256x256', '2x150x256x256', '4096x1000')
    compare(args, sizes, LOSSES, ('published', 'eager', 'compiled'), loss_steps)


def loss_steps(name, shape, args):
    """Return training steps of a loss by way, cross-entropy first; empty if it needs maps."""
    if len(shape) == 2 and name in LABEL_MAP_LOSSES:
        return {}
    options = {'num_classes': shape[1]} if name == 'CALSLoss' else {}
    logits = (4 * torch.randn(shape, device=args.device)).to(getattr(torch, args.dtype))
    target = torch.randint(shape[1], (shape[0], *shape[2:]), device=args.device)
    implementations = {'cross-entropy': F.cross_entropy}
    if name == 'MarginLabelSmoothingLoss':
        implementations['published'] = published
    implementations['eager'] = LOSSES[name](**options).to(args.device)
    if not issubclass(LOSSES[name], losses.BatchLoss):
        implementations['compiled'] = LOSSES[name](**options, compile=True).to(args.device)
    logits.requires_grad_()
    # A shape must neither profit from another's kernel nor meet its limit of recompilations.
    torch.compiler.reset()
    steps = {}
    for way, loss in implementations.items():
        steps[way] = functools.partial(step, loss, logits, target)
    return steps


def step(loss, logits, target):
    loss(logits, target).backward()
    logits.grad = None  # Otherwise the next step would begin by freeing it.


def time_metrics(args):
    usual = ('ECE', 'AECE', 'NLL')
    calibration_metrics = {
        'ECE': [CalibrationMetric('ECE')],
        'ECE, AECE, NLL': [CalibrationMetric(usual)],
        'the same as three metrics': [CalibrationMetric(name) for name in usual],
        'ECE, AECE, NLL, Brier, ClasswiseECE': [
            CalibrationMetric([*usual, 'Brier', 'ClasswiseECE'])
        ],
        'ECE, AECE, NLL, refinement_NLL': [CalibrationMetric([*usual, 'refinement_NLL'])],
        'all': [CalibrationMetric(NAMES)],
        'all, by class and distance': [CalibrationMetric(NAMES, per_class=True, per_distance=True)],
    }
    for size in args.sizes or ('21x512x512', '150x512x512'):
        samples = [draw_image(seed, parse_shape(size)) for seed in range(2)]
        logits = samples[0]['seg_logits']['data']
        init_default_scope('mmseg')
        miou = METRICS.build(dict(type='IoUMetric'))
        miou.dataset_meta = {'classes': [str(k) for k in range(len(logits))]}
        all_metrics = {**calibration_metrics, 'mmseg: IoUMetric': [miou]}
        contenders = {'floor': lambda x=logits: (x.max(dim=0), x.logsumexp(dim=0))}
        for name, metrics in all_metrics.items():
            contenders[name] = functools.partial(process, metrics, samples)
        seconds = best_seconds(contenders, args)
        rows = []
        for name, metrics in all_metrics.items():
            num_bytes = sum(len(pickle.dumps(metric.results)) for metric in metrics)
            num_images = sum(len(metric.results) for metric in metrics) / len(metrics)
            rows.append([name, *ratios(seconds, [name]), f'{num_bytes / 1e3 / num_images:.1f}'])
            for metric in metrics:
                metric.results.clear()
        print_table([size.replace('x', '×'), 'max, logsumexp (s)', 'ratio', 'kB an image'], rows)


def draw_image(seed, shape):
    """Return a sample of mmseg's: patches of labels, and logits of which most are very sure."""
    num_classes, *size = shape
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


def process(metrics, samples):
    samples.append(samples.pop(0))  # The next call takes the next sample.
    for metric in metrics:
        metric.process(None, samples[:1])


def time_upsampling(args):
    names = ('MarginLabelSmoothingLoss', 'SoftmaxFocalLoss')
    ways = ('plain', 'fused', 'fused, compiled')
    compare(args, ('2x150x512x512',), names, ways, head_steps)


def head_steps(name, shape, args):
    """Return training steps of a segmentor's head by way, with mmseg's cross-entropy first."""
    from mmseg.models.decode_heads import FCNHead
    from mmseg.structures import SegDataSample

    images, classes, height, width = shape
    logits = 4 * torch.randn(images, classes, height // 4, width // 4, device=args.device)
    logits.requires_grad_()
    labels = torch.randint(classes, (images, 1, height, width), device=args.device)
    labels[:, :, : height // 20] = 255
    samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]

    def head_step(loss=None, fused=False):
        head = FCNHead(
            in_channels=8, channels=8, num_convs=0, concat_input=False, num_classes=classes
        ).to(args.device)
        if loss is not None:
            head.loss_decode = loss
        if fused:
            head.loss_by_feat = types.MethodType(fused_loss_by_feat, head)

        def step():
            values = head.loss_by_feat(logits, samples)
            sum(value for name, value in values.items() if 'loss' in name).backward()
            logits.grad = None

        return step

    loss_type = LOSSES[name]
    return {
        'cross-entropy': head_step(),
        'plain': head_step(loss_type()),
        'fused': head_step(loss_type(), fused=True),
        'fused, compiled': head_step(loss_type(compile=True), fused=True),
    }


def time_ensembles(args):
    members = split_members(args.config, args.checkpoints)
    first = members[:1]
    means = {
        'one model': Averaging(members=first),
        'image and mirror image': Averaging(members=first, tta=True, tta_scales=[1.0]),
        'MC dropout, 10 passes': Averaging(members=first, mc_dropout=10),
    }
    if len(members) > 1:
        means[f'ensemble of {len(members)}'] = Averaging(members=members)
    load = functools.partial(load_config, options=args.cfg_options)
    contenders = {}
    for name, mean in means.items():
        cfg = load(args.config)
        networks = read_networks(cfg, mean.members, load)
        prepared = prepare_model(cfg, networks, mean, always_mean=name != 'one model')
        init_default_scope(cfg.default_scope)
        model = build_model(cfg, prepared.checkpoints)
        data = DATASETS.build(cfg.test_dataloader.dataset)
        contenders[name] = functools.partial(predict, model, data, args.images)
    seconds = best_seconds(contenders, args)
    rows = [[name, *ratios(seconds, [name])] for name in contenders]
    print_table(['predictions', 'one model (s)', 'ratio'], rows)


@torch.no_grad()
def predict(model, data, images):
    for image in range(images):
        model.test_step(pseudo_collate([data[image]]))


def processor_name():
    """Return the name of the processor, which only Linux and Windows tell in full."""
    if sys.platform == 'linux':
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def main():
    parser = ToolParser(description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar='KIND')
    benchmarks = {
        'losses': time_losses,
        'metrics': time_metrics,
        'upsampling': time_upsampling,
        'ensembles': time_ensembles,
    }
    for name, run in benchmarks.items():
        subparser = subparsers.add_parser(name)
        subparser.set_defaults(run=run, warmup=3)
        subparser.add_argument('--rounds', type=int, default=30)
        subparser.add_argument('--cpu-seconds', action='store_true', help='instead of wall time')
        subparser.add_argument('--device', default='cpu')
        if name == 'ensembles':
            subparser.add_argument('config')
            subparser.add_argument('checkpoints', nargs='+', metavar='CHECKPOINT')
            subparser.add_argument('--images', type=int, default=20)
            subparser.add_argument('--cfg-options', nargs='+', action=ConfigOptions)
            subparser.set_defaults(rounds=1, warmup=1)
            continue
        subparser.add_argument('--sizes', nargs='+', help='such as 4x21x256x256')
        subparser.add_argument('--losses', nargs='+', choices=LOSSES)
        dtypes = ('float32', 'bfloat16', 'float16')
        subparser.add_argument('--dtype', default='float32', choices=dtypes)
        if name == 'metrics':
            # These images pass the limit of exact fine bins, so that all rounds do the same work.
            subparser.set_defaults(warmup=8)
    args = parser.parse_args()
    warnings.filterwarnings('ignore', message='.*non-leaf.*')
    print(f'torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads')
    print(f'{processor_name()}, {torch.backends.cpu.get_cpu_capability()}')
    args.run(args)


if __name__ == '__main__':
    main()
