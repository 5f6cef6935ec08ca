"""What ``results.json`` says of a run: enough to tell which runs may share a row of a table."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import mmengine
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.hooks.checkpoint_meta_hook import TRAINED, CheckpointMeta
from mmcalib.hooks.drawing_hook import kept_statistics
from mmcalib.hooks.load_members_hook import LoadMembersHook
from mmcalib.metrics import CalibrationMetric, OODMetric
from mmcalib.metrics.bins.stratified_bins import stratum_figures
from mmcalib.runs.checkpoint_choice import LAST_WEIGHTS, which_checkpoint
from mmcalib.runs.ensemble_record import (
    AVERAGED,
    common_training,
    describe_mean,
    members_of,
)
from mmcalib.runs.loss_config import main_loss
from mmcalib.runs.model_settings import model_settings
from mmcalib.runs.parse_config_text import parse_config
from mmcalib.runs.training_fingerprint import (
    comparable,
    dataset_options,
    digest,
    pipelines,
    trained_config,
)
from mmcalib.samples.boundary_distance import RANGE_NAMES
from mmcalib.work_dir_files import RESULTS, VALIDATION_RESULTS

# Where `meta` of a checkpoint says that it was calibrated.
CALIBRATION = 'calibration'
DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')


def results_of(
    runner: Runner, checkpoint: str | Sequence[str], *, finished: bool | None = None
) -> dict:
    """Return what identifies the evaluation that a Runner has just made.

    A checkpoint knows its own seed and config: those count, since it may be tested under a config
    of another loss, or without the options it was trained with.

    Args:
        runner: After its test.
        checkpoint: What was tested: its path, or those of a mean.
        finished: Whether the training came to its end; None to find out from the files beside the
            checkpoint.

    Returns:
        For JSON; None where a value is unknown, and older files lack some keys:

        - ``seed``, ``date``, ``version``;
        - ``loss``: type and parameters of the main loss;
        - ``trained``: what was trained beside it, as ``{'digest': …, 'config': {…}}`` with the
          parts of :func:`~mmcalib.runs.training_fingerprint.trained_config`, whose digest is
          equal where all parts are;
        - ``limit``: to how many samples a smoke run was limited, in training or in the test;
        - ``calibration``: see :func:`describe_calibration`;
        - ``training``: its length, whether it ``finished``, the ``epoch`` of the checkpoint, and
          which ``checkpoint`` it is, see
          :func:`~mmcalib.runs.checkpoint_choice.which_checkpoint`, before any calibration;
        - ``averaged``, of the mean of several predictions alone: see :func:`describe_mean`;
        - ``settings``, of a model alone: see
          :func:`~mmcalib.runs.model_settings.model_settings`;
        - ``evaluation``: see :func:`evaluation`;
        - ``per_class`` and ``per_distance``, where they were measured: see :func:`strata`.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointMeta)), None)
    loading = next((hook for hook in runner.hooks if isinstance(hook, LoadMembersHook)), None)
    if loading:
        members = list(zip(loading.metas, loading.checkpoints, strict=True))
    elif hook and checkpoint == LAST_WEIGHTS:  # and not those it may have been resumed from
        members = [({TRAINED: hook.trained, 'epoch': runner.epoch}, checkpoint)]
    else:
        members = [(hook.meta if hook else {}, checkpoint)]
    trained = [training_of(runner, meta, path, finished=finished) for meta, path in members]
    _warn_of_mixed_work_dirs([path for _, path in members], trained)
    return {
        **(common_training(trained) if loading else trained[0]),
        **(
            {'averaged': describe_mean(runner.cfg, loading, trained)}
            if loading
            else {'settings': model_settings(runner.cfg)}
        ),
        'evaluation': evaluation(runner),
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
        **strata(runner),
    }


def _warn_of_mixed_work_dirs(checkpoints: Sequence[str], trained: Sequence[Mapping]) -> None:
    """Say which work dir several members come from that are of different trainings."""
    found = defaultdict(set)
    for path, training in zip(checkpoints, trained, strict=True):
        found[os.path.dirname(path)].add((training['trained']['digest'], training['seed']))
    for folder in (folder for folder, trainings in found.items() if len(trainings) > 1):
        print_log(
            f'{folder or "."} holds checkpoints of different trainings, and this is their mean: '
            'name those of one training, unless that is meant',
            'current',
            logging.WARNING,
        )


def training_of(
    runner: Runner, meta: Mapping, checkpoint: str, *, finished: bool | None = None
) -> dict:
    """Return what :func:`results_of` says of the training that left a checkpoint."""
    cfg = config_in(meta)
    if cfg is None:
        cfg = {**runner.cfg, 'model': runner.cfg.model.get('module', runner.cfg.model)}
    schedule = length(cfg)
    if finished is None:
        finished = training_finished(checkpoint, schedule)
    trained = meta.get(TRAINED)
    trained = comparable(trained) if isinstance(trained, Mapping) else trained_config(cfg)
    return {
        'seed': meta.get('seed', runner.seed),
        'loss': main_loss(cfg),
        'trained': {'digest': digest(trained), 'config': trained},
        'calibration': describe_calibration(meta),
        'limit': runner.cfg.get('limit') or cfg.get('limit'),
        'training': {
            **schedule,
            'finished': finished,
            'epoch': meta.get('epoch'),
            'checkpoint': which_checkpoint(_uncalibrated(meta, checkpoint), schedule),
        },
    }


def _uncalibrated(meta: Mapping, checkpoint: str) -> str:
    """Return which checkpoint the training left, whatever it is called after a calibration."""
    found = meta.get(CALIBRATION)
    while isinstance(found, Mapping) and 'checkpoint' in found:
        checkpoint, found = found['checkpoint'], found.get('earlier')
    return checkpoint


def describe_calibration(meta: Mapping) -> dict | None:
    """Return by what a checkpoint was calibrated after its training, None if it was not.

    See :mod:`mmcalib.calibrate.calibrate_checkpoint` for what a calibration leaves in `meta`.
    """
    found = meta.get(CALIBRATION)
    if not isinstance(found, Mapping) or 'method' not in found:  # another tool's word
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
    """Return how a Runner tests: the data, and the options of its calibration metric.

    Returns:
        ``dataset`` (type, split and number of samples), ``data_options`` (its other options, such
        as noise), ``pipeline`` (its transforms), ``inference`` (``test_cfg`` of the model, left
        out where the whole image is predicted at once), ``tta``, and what the metric was told;
        ``other_metrics`` has what was measured with other options than the first, ``ood`` the
        ``prefix``, ``scores``, ``ood_index`` and ``counts`` of each ``OODMetric``.
    """
    dataset = runner.cfg.test_dataloader.dataset
    options = dataset_options(dataset)
    model = runner.cfg.model.get('module', runner.cfg.model)
    averaged = runner.cfg.get(AVERAGED)
    inference = comparable(model.get('test_cfg') or {})
    result = {
        'dataset': {**describe_dataset(dataset), 'samples': len(runner.test_dataloader.dataset)},
        'data_options': {key: value for key, value in options.items() if key not in DATASET_KEYS},
        # The views of a mean are not another evaluation, but another model.
        'pipeline': pipelines(dataset) if averaged is None else averaged['pipeline'],
        'tta': 'module' in runner.cfg.model and averaged is None,
        **({'inference': inference} if inference not in ({}, {'mode': 'whole'}) else {}),
    }
    ours = [
        (metric.metrics, _metric_options(metric))
        for metric in runner.test_evaluator.metrics
        if isinstance(metric, CalibrationMetric) and metric.prefix == 'calibration'
    ]
    for _, options in ours[:1]:
        result |= options
    others = {name: options for names, options in ours if options != ours[0][1] for name in names}
    unseen = [
        {name: getattr(metric, name) for name in ('prefix', 'scores', 'ood_index', 'counts')}
        for metric in runner.test_evaluator.metrics
        if isinstance(metric, OODMetric)
    ]
    more = {'other_metrics': others, 'ood': unseen}
    return {**result, **{key: value for key, value in more.items() if value}}


def strata(runner: Runner) -> dict:
    """Return the calibration of each class, and at each distance, that a test has measured.

    Returns:
        ``per_class`` and ``per_distance``, each with tables by the name of the file of statistics
        that has their bins, mostly ``calibration``; nothing where none was asked for. A table has
        the lists ``classes`` or ``pixels``, ``ECE``, ``accuracy``, ``confidence`` and ``count``.
        None stands for what nothing was predicted of.
    """
    metrics = [m for m in runner.test_evaluator.metrics if isinstance(m, CalibrationMetric)]
    metrics = [m for m in metrics if m.statistics is not None]  # on other ranks there are none
    found = {'per_class': {}, 'per_distance': {}}
    for name, statistics in kept_statistics(metrics).items():
        if statistics.class_bins is not None:
            figures = _without_nan(stratum_figures(statistics.class_bins))
            found['per_class'][name] = {'classes': statistics.classes, **figures}
        if statistics.distance_bins is not None:
            figures = _without_nan(stratum_figures(statistics.distance_bins))
            found['per_distance'][name] = {'pixels': list(RANGE_NAMES), **figures}
    return {key: tables for key, tables in found.items() if tables}


def _without_nan(figures: Mapping[str, list[float]]) -> dict[str, list[float | None]]:
    return {
        name: [None if value != value else value for value in values]
        for name, values in figures.items()
    }


def _metric_options(metric: CalibrationMetric) -> dict:
    names = ['protocol', 'convention', 'num_bins', 'ignore_index']
    names += ['boundary_width'] if metric.protocol == 'boundary' else []
    return {name: getattr(metric, name) for name in names}


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
        try:
            if json.loads((folder / name).read_text())['training']['finished']:
                return True
        except (OSError, KeyError, TypeError, ValueError):  # none, or cut off by an older version
            continue
    last = folder / 'last_checkpoint'
    number = re.search(r'_(\d+)\.pth$', last.read_text().strip()) if last.is_file() else None
    return int(number[1]) >= min(schedule.values()) if number and schedule else None


def config_in(meta: Mapping) -> dict | None:
    """Return the config that a checkpoint was trained with, None if it carries none to read."""
    text = meta.get('cfg')
    if not isinstance(text, str):
        return None
    try:
        cfg = parse_config(text)
    except ValueError as error:
        print_log(f"The checkpoint's own config cannot be read ({error}): using yours.", 'current')
        return None
    return cfg if 'model' in cfg else None


def keep_other_results(cfg: Config, checkpoint: str | Sequence[str], split: str) -> None:
    """Move the work dir of a test to a folder below, if it has results of another model.

    That is of another checkpoint, or of another mean of the same ones: of other views, another seed
    of the dropout or another temperature. So the uncalibrated result outlives that of the
    calibrated checkpoint, for example.
    """
    name = VALIDATION_RESULTS if split == 'val' else RESULTS
    try:
        results = mmengine.load(Path(cfg.work_dir, name))
        theirs, ours = members_of(results['checkpoint']), members_of(checkpoint)
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return
    # A run that was moved still has its own results.
    names = [[Path(path).name for path in paths] for paths in (theirs, ours)]
    moved = not any(map(os.path.exists, theirs)) and names[0] == names[1]
    same = list(map(os.path.realpath, theirs)) == list(map(os.path.realpath, ours)) or moved
    if same and _same_mean(results.get(AVERAGED) or {}, cfg.get(AVERAGED) or {}):
        return
    # The names of all members may be too long for that of a folder.
    several = f'x{len(ours)}_{digest(list(map(os.path.realpath, ours)))[:8]}'
    folder = str(Path(cfg.work_dir, several if len(ours) > 1 else Path(ours[0]).stem))
    what = f'{"another mean of " if same else ""}{", ".join(theirs)}'
    print(f'{cfg.work_dir} has the results of {what}: the new ones go to {folder}')
    cfg.work_dir = folder
    keep_other_results(cfg, checkpoint, split)  # of another run, it may have the same name


def _same_mean(there: Mapping, here: Mapping) -> bool:
    """Return whether the same is averaged, as far as an older version says."""
    return bool(there) == bool(here) and all(
        there.get(key, here.get(key)) == here.get(key)
        for key in ('transforms', 'mc_dropout', 'dropout_seed', 'temperature')
    )
