"""What ``results.json`` says of a run: enough to tell which runs may share a row of a table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import mmengine
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.hooks.checkpoint_meta import CheckpointMeta
from mmcalib.metrics import CalibrationMetric
from mmcalib.run_files import RESULTS, VALIDATION_RESULTS
from mmcalib.runs.loss_config import main_loss

# Where `meta` of a checkpoint says that it was calibrated.
CALIBRATION = 'calibration'
DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')


def results_of(runner: Runner, checkpoint: str, *, finished: bool | None = None) -> dict:
    """Return what identifies the evaluation that a Runner has just made.

    A checkpoint knows its own seed and config: those count, since it may be tested under a config
    of another loss, or without the options it was trained with.

    Args:
        runner: After its test.
        checkpoint: What was tested.
        finished: Whether the training came to its end; None to find out from the files beside the
            checkpoint.

    Returns:
        ``seed``, ``loss``, ``calibration``, ``training``, ``evaluation``, ``date`` and
        ``version``, for JSON.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointMeta)), None)
    meta = hook.meta if hook else {}
    cfg = _trained_config(meta) or runner.cfg
    schedule = length(cfg)
    if finished is None:
        finished = training_finished(checkpoint, schedule)
    return {
        'seed': meta.get('seed', runner.seed),
        'loss': main_loss(cfg),
        'calibration': describe_calibration(meta),
        'training': {**schedule, 'finished': finished, 'epoch': meta.get('epoch')},
        'evaluation': evaluation(runner),
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
    }


def describe_calibration(meta: Mapping) -> dict | None:
    """Return by what a checkpoint was calibrated after its training, None if it was not.

    See :mod:`mmcalib.runs.checkpoint_calibration` for what a calibration leaves in `meta`.
    """
    found = meta.get(CALIBRATION)
    if not found:
        return None
    methods, earlier = [found['method']], found.get('earlier')
    while earlier:
        methods.insert(0, earlier['method'])
        earlier = earlier.get('earlier')
    return {
        'methods': methods,
        'options': found['options'],
        'split': found['split'],
        'forced': found['forced'],
    }


def evaluation(runner: Runner) -> dict:
    """Return how a Runner tests: the data, and the options of its calibration metric."""
    dataset = describe_dataset(runner.cfg.test_dataloader.dataset)
    result = {
        'dataset': {**dataset, 'samples': len(runner.test_dataloader.dataset)},
        'tta': 'module' in runner.cfg.model,
    }
    for metric in runner.test_evaluator.metrics:
        if isinstance(metric, CalibrationMetric) and metric.prefix == 'calibration':
            result['protocol'] = metric.protocol
            result['convention'] = metric.convention
            result['num_bins'] = metric.num_bins
            result['ignore_index'] = metric.ignore_index
            break
    return result


def describe_dataset(dataset: Mapping) -> dict:
    """Return what identifies the data of a dataset's config, looking through its wrappers."""
    result = {}
    while isinstance(dataset, Mapping):  # the innermost has the type, wrappers may add to it
        result.update({key: dataset[key] for key in DATASET_KEYS if key in dataset})
        dataset = dataset.get('dataset')
    return result


def length(cfg: Mapping) -> dict:
    """Return ``{'epochs': n}`` or ``{'iterations': n}`` of a config's training, ``{}`` of none."""
    train = cfg.get('train_cfg') or {}
    if train.get('max_epochs'):
        return {'epochs': train['max_epochs']}
    return {'iterations': train['max_iters']} if train.get('max_iters') else {}


def training_finished(checkpoint: str, schedule: Mapping) -> bool | None:
    """Return whether the training that left a checkpoint is over, None if its folder cannot say."""
    folder = Path(checkpoint).parent
    for name in (RESULTS, VALIDATION_RESULTS):  # early stopping ends it before its last epoch
        if (folder / name).is_file():
            earlier = json.loads((folder / name).read_text())
            if earlier.get('training', {}).get('finished'):
                return True
    last = folder / 'last_checkpoint'
    number = re.search(r'_(\d+)\.pth$', last.read_text().strip()) if last.is_file() else None
    return int(number[1]) >= min(schedule.values()) if number and schedule else None


def _trained_config(meta: Mapping) -> Config | None:
    """Return the config that a checkpoint was trained with, None if it carries none that loads."""
    text = meta.get('cfg')
    if not isinstance(text, str):
        return None
    try:
        cfg = Config.fromstring(text, '.py')
    except Exception as error:  # it is code, and a stranger's
        print_log(f"The checkpoint's own config cannot be read ({error}): using yours.", 'current')
        return None
    return cfg if 'model' in cfg else None


def keep_other_results(cfg: Config, checkpoint: str, split: str) -> None:
    """Move the work dir of a test to a folder below, if it has the results of another checkpoint.

    So the uncalibrated result outlives that of the calibrated checkpoint, for example.
    """
    name = VALIDATION_RESULTS if split == 'val' else RESULTS
    try:
        earlier = mmengine.load(Path(cfg.work_dir, name))['checkpoint']
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return
    # A run that was moved still has its own results.
    moved = not os.path.exists(earlier) and Path(earlier).name == Path(checkpoint).name
    if os.path.realpath(earlier) == os.path.realpath(checkpoint) or moved:
        return
    folder = str(Path(cfg.work_dir, Path(checkpoint).stem))
    print(f'{cfg.work_dir} has the results of {earlier}: the new ones go to {folder}')
    cfg.work_dir = folder
    keep_other_results(cfg, checkpoint, split)  # of another run, it may have the same name
