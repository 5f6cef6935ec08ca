"""What ``results.json`` says of a run: enough to tell which runs may share a row of a table."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import MODELS
from mmengine.runner import Runner

from mmcalib.metrics import CalibrationMetric
from mmcalib.version import __version__

VAR_KEYWORD, VAR_POSITIONAL = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
RESULTS = 'results.json'
VALIDATION_RESULTS = 'results_val.json'
# Said of every loss that has them, also where the config leaves them at their defaults.
NAMED_PARAMETERS = ('margin', 'alpha', 'gamma', 'avg_non_ignore')
# Where `meta` of a checkpoint says that it was calibrated.
CALIBRATION = 'calibration'
# They change no figure.
UNIMPORTANT = ('loss_name', 'compile')
DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')


class CheckpointMeta(Hook):
    """Keeps what the checkpoint that was loaded last says of itself."""

    def __init__(self) -> None:
        self.meta: dict = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.meta = checkpoint.get('meta') or {}


def describe(runner: Runner, checkpoint: str, *, finished: bool | None = None) -> dict:
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

    See :mod:`mmcalib.posthoc.calibrate` for what a calibration leaves in the checkpoint's `meta`.
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


def find_losses(node: object, key: str = 'model') -> Iterator[tuple[str, Mapping]]:
    """Yield the dotted key and the config of every loss in a model's config.

    mmpretrain's heads have a ``loss``, mmseg's a ``loss_decode``, either of which may be a list.
    """
    if isinstance(node, Mapping):
        for name, item in node.items():
            if name.startswith('loss') and isinstance(item, (Mapping, list, tuple)):
                for index, loss in enumerate(item if not isinstance(item, Mapping) else [item]):
                    suffix = '' if isinstance(item, Mapping) else f'.{index}'
                    if isinstance(loss, Mapping) and 'type' in loss:
                        yield f'{key}.{name}{suffix}', loss
            else:
                yield from find_losses(item, f'{key}.{name}')
    elif isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from find_losses(item, f'{key}.{index}')


def main_loss(cfg: Mapping) -> dict | None:
    """Return type and parameters of the loss of a model's head, None if it has none.

    Parameters at their defaults are left out, but for :data:`NAMED_PARAMETERS`.
    """
    losses = [loss for key, loss in find_losses(cfg.get('model')) if 'auxiliary' not in key]
    if not losses:
        return None
    loss = losses[0]
    try:
        parameters = loss_parameters(loss, cfg.get('default_scope'))
    except ValueError:  # a checkpoint's own loss need not be known here
        parameters = {}
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    named = {name: defaults[name] for name in NAMED_PARAMETERS if name in defaults}
    given = {
        name: value
        for name, value in loss.items()
        if name not in UNIMPORTANT and (name not in defaults or value != defaults[name])
    }
    options = {
        name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in {**named, **given}.items()
    }
    return {**options, 'type': str(loss['type']).split('.')[-1]}


def loss_parameters(loss: Mapping, scope: str | None) -> dict[str, inspect.Parameter]:
    """Return the constructor parameters of a loss by its config, those of its base class included.

    Raises:
        ValueError: If no registry knows its type.
    """
    kind = loss['type']
    if not inspect.isclass(kind):
        with MODELS.switch_scope_and_registry(scope) as registry:
            try:
                kind = registry.get(kind)
            except RuntimeError:
                kind = None
    if kind is None:
        raise ValueError(f'no loss is registered as {loss["type"]!r}')
    parameters = {}
    for ancestor in kind.__mro__:
        names = inspect.signature(ancestor.__init__).parameters
        for name, parameter in names.items():
            if name != 'self' and parameter.kind not in (VAR_KEYWORD, VAR_POSITIONAL):
                parameters.setdefault(name, parameter)
        if not any(parameter.kind is VAR_KEYWORD for parameter in names.values()):
            break  # it passes nothing on
    return parameters


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
