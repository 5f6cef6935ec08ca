"""The record of a test: a Runner's facts about the model, its training and the evaluation."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.datasets.same_data import same_data
from mmcalib.hooks.checkpoint_meta_hook import TRAINING, CheckpointMeta
from mmcalib.hooks.drawing_hook import kept_statistics
from mmcalib.hooks.load_members_hook import LoadMembersHook
from mmcalib.metrics import CalibrationMetric, OODMetric
from mmcalib.metrics.strata import stratum_figures
from mmcalib.record import digest, paths_of, read_record
from mmcalib.runs.checkpoint_io import is_file
from mmcalib.runs.tested_model import ENSEMBLE, describe_model, same_ensemble
from mmcalib.runs.training_fingerprint import comparable, dataset_options, pipelines
from mmcalib.runs.training_record import common_training, describe_calibration, training_of
from mmcalib.samples.boundary import RANGE_NAMES
from mmcalib.work_dir import RESULTS, VALIDATION_RESULTS, experiment_name

DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')


def tested_model(runner: Runner, checkpoint: str) -> dict:
    """Return the model that a Runner is about to test, see :func:`describe_model`.

    Args:
        runner: Before its test, which may take longer than a training needs to replace the file.
        checkpoint: Its path, or the name of weights in no file; of an ensemble it is not read.
    """
    if ENSEMBLE in runner.cfg:
        return runner.cfg[ENSEMBLE]['model']
    metas = None if is_file(checkpoint) else [_meta_of_last(runner)]
    images = pipelines(runner.cfg.test_dataloader.dataset)
    return describe_model([runner.cfg], [checkpoint], pipelines=images, metas=metas)


def _meta_of_last(runner: Runner) -> dict:
    """Return the meta of the checkpoint that a training would write now."""
    hook = next(hook for hook in runner.hooks if isinstance(hook, CheckpointMeta))
    return {TRAINING: hook.training, 'epoch': runner.epoch, 'seed': runner.seed}


def record_of(
    runner: Runner, model: Mapping, *, split: str = 'test', finished: bool | None = None
) -> dict:
    """Return the record of the test that a Runner has just made, but for its metrics.

    Args:
        runner: After its test.
        model: Of :func:`tested_model`.
        split: The split that was tested.
        finished: Whether the training came to its end; None to find out from the files beside the
            checkpoint.

    Returns:
        For JSON; None where a value is unknown:

        - ``experiment``, ``split``, ``date``, ``version``;
        - ``model``: see :func:`~mmcalib.runs.tested_model.describe_model`;
        - ``seed``;
        - ``loss``: type and parameters of the main loss; ``losses`` of members that differ;
        - ``trained``: what was trained beside it, as ``{'digest': …, 'config': {…}}`` with the
          parts of :func:`~mmcalib.runs.training_fingerprint.trained_config`, whose digest is
          equal where all parts are;
        - ``limit``: to how many samples a smoke run was limited, in training or in the test;
        - ``calibration``: of each checkpoint, see
          :func:`~mmcalib.runs.training_record.describe_calibration`;
        - ``training``: its length, whether it ``finished``, the ``epoch`` of the checkpoint, and
          which ``checkpoint`` it is, see
          :func:`~mmcalib.runs.checkpoint_choice.which_checkpoint`, before any calibration;
        - ``evaluation``: see :func:`evaluation`;
        - ``per_class`` and ``per_distance``, where they were measured: see :func:`strata`.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointMeta)), None)
    loading = next((hook for hook in runner.hooks if isinstance(hook, LoadMembersHook)), None)
    paths = paths_of(model)
    if loading:
        metas = loading.metas
    elif not is_file(paths[0]):  # and not those it may have been resumed from
        metas = [_meta_of_last(runner)]
    else:
        metas = [hook.meta if hook else {}]
    trained = [
        training_of(meta, path, runner.cfg, seed=runner.seed, finished=finished)
        for meta, path in zip(metas, paths, strict=True)
    ]
    _warn_of_mixed_work_dirs(paths, trained)
    _warn_of_fitted_images(runner.cfg, metas)
    return {
        'experiment': experiment_name(runner.cfg.filename),
        'split': split,
        'model': model,
        **common_training(trained),
        'evaluation': evaluation(runner),
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
        **strata(runner),
    }


def _warn_of_mixed_work_dirs(checkpoints: Sequence[str], trained: Sequence[Mapping]) -> None:
    """Warn of a work dir whose members come from different trainings."""
    found = defaultdict(set)
    for path, training in zip(checkpoints, trained, strict=True):
        found[os.path.dirname(path)].add((training['trained']['digest'], training['seed']))
    for folder in (folder for folder, trainings in found.items() if len(trainings) > 1):
        print_log(
            f'{folder or "."} holds checkpoints of different trainings, and this is their mean: '
            'name those of one training, unless you intend this',
            'current',
            logging.WARNING,
        )


def _warn_of_fitted_images(cfg: Config, metas: Sequence[Mapping]) -> None:
    """Warn of a scaling that is tested on the images that it was fitted on."""
    found = filter(None, map(describe_calibration, metas))
    fitted = {calibration['split'] for calibration in found}
    if any(same_data(cfg.get(f'{split}_dataloader'), cfg.test_dataloader) for split in fitted):
        print_log(
            'The scaling of the checkpoint was fitted on these images, so the figures are better '
            'than on others: test on others, or quote what calibrate.py prints if it cross-fits',
            'current',
            logging.WARNING,
        )


def evaluation(runner: Runner) -> dict:
    """Return the evaluation: the data, and the options of the calibration metric.

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
    ensemble = runner.cfg.get(ENSEMBLE)
    inference = comparable(model.get('test_cfg') or {})
    result = {
        'dataset': {**describe_dataset(dataset), 'samples': len(runner.test_dataloader.dataset)},
        'data_options': {key: value for key, value in options.items() if key not in DATASET_KEYS},
        # The views of an ensemble are not another evaluation, but another model.
        'pipeline': ensemble['pipelines'] if ensemble else pipelines(dataset),
        'tta': 'module' in runner.cfg.model and not ensemble,
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
    names = ['protocol', 'num_bins', 'ignore_index']
    names += ['boundary_width'] if metric.protocol == 'boundary' else []
    return {name: getattr(metric, name) for name in names}


def describe_dataset(dataset: Mapping) -> dict:
    """Return the keys that identify the data in a dataset's config, wrappers included."""
    result = {}
    while isinstance(dataset, Mapping):  # the innermost has the type, wrappers may add to it
        result.update({key: dataset[key] for key in DATASET_KEYS if key in dataset})
        dataset = dataset.get('dataset')
    return result


def keep_other_results(cfg: Config, checkpoints: Sequence[str], split: str) -> None:
    """Move the work dir of a test to a folder below, if it has results of another model.

    That is of another checkpoint, or of another ensemble of the same ones: of other views, another
    seed of the dropout or another temperature. So the uncalibrated result outlives that of the
    calibrated checkpoint, for example.
    """
    name = VALIDATION_RESULTS if split == 'val' else RESULTS
    try:
        there = read_record(Path(cfg.work_dir, name))['model']
    except (OSError, ValueError):
        return
    theirs, ours = paths_of(there), list(checkpoints)
    # A run that was moved still has its own results.
    names = [[Path(path).name for path in paths] for paths in (theirs, ours)]
    moved = not any(map(os.path.exists, theirs)) and names[0] == names[1]
    same = list(map(os.path.realpath, theirs)) == list(map(os.path.realpath, ours)) or moved
    if same and same_ensemble(there, (cfg.get(ENSEMBLE) or {}).get('model')):
        return
    # The names of all members may be too long for that of a folder.
    several = f'x{len(ours)}_{digest(list(map(os.path.realpath, ours)))[:8]}'
    folder = str(Path(cfg.work_dir, several if len(ours) > 1 else Path(ours[0]).stem))
    what = f'{"another mean of " if same else ""}{", ".join(theirs)}'
    print(f'{cfg.work_dir} has the results of {what}: the new ones go to {folder}')
    cfg.work_dir = folder
    keep_other_results(cfg, checkpoints, split)  # of another run, it may have the same name
