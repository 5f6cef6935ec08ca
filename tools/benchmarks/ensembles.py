"""CPU time of a test's step under the mean of several predictions, as a ratio to one model alone.

    python tools/benchmarks/ensembles.py CONFIG CHECKPOINT OTHER.py:CHECKPOINT --images 20

Contenders take turns at each test image, on one thread. What loads an image and what measures are
left out; the mean itself is part of a step. The second checkpoint is for the ensemble of two.
"""

import argparse
import time

import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope

from mmcalib.cli.arguments import ConfigOptions
from mmcalib.cli.members import split_members
from mmcalib.runs.config import load_config
from mmcalib.runs.ensemble_config import average_predictions, load_member_configs
from mmcalib.tasks.predict.load_model import load_predicting_model

# What is asked of average_predictions, of the first checkpoint alone but for the ensemble.
ENSEMBLES = {
    'image and mirror image': dict(tta=True, scales=[1.0]),
    'MC dropout, 10 passes': dict(mc_dropout=10),
    'ensemble of 2': dict(),
}


def prepare(members, options, cfg_options):
    """Return the model and the test data of a mean, of one model alone if options are None."""

    def load(path):
        return load_config(path, cfg_options)

    cfg = load(members[0][0])
    checkpoints = [path for _, path in members]
    if options is not None:
        configs = load_member_configs(cfg, members, load)
        average_predictions(cfg, checkpoints, member_configs=configs, **options)
    init_default_scope(cfg.default_scope)
    model, _ = load_predicting_model(cfg, checkpoints)
    return model, DATASETS.build(cfg.test_dataloader.dataset)


def measure(contenders, images):
    """Return the CPU seconds of each contender over all images."""
    seconds = dict.fromkeys(contenders, 0.0)
    for image in range(-1, images):  # the first one warms up
        for name, (model, data) in contenders.items():
            batch = pseudo_collate([data[max(image, 0)]])
            start = time.process_time()
            with torch.no_grad():
                model.test_step(batch)
            if image >= 0:
                seconds[name] += time.process_time() - start
    return seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config')
    parser.add_argument('checkpoints', nargs='+', metavar='CHECKPOINT')
    parser.add_argument('--images', type=int, default=20)
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions)
    args = parser.parse_args()
    torch.set_num_threads(1)
    members = split_members(args.config, args.checkpoints)
    contenders = {'one model': prepare(members[:1], None, args.cfg_options)}
    for name, options in ENSEMBLES.items():
        own = members if name.startswith('ensemble') else members[:1]
        if options or len(own) > 1:
            contenders[name] = prepare(own, options, args.cfg_options)
    seconds = measure(contenders, args.images)
    print('| predictions | CPU seconds of an image | ratio |')
    print('|---|--:|--:|')
    for name, value in seconds.items():
        print(f'| {name} | {value / args.images:.3f} | {value / seconds["one model"]:.2f} |')


if __name__ == '__main__':
    main()
