"""The work of tools/test_robustness.py: models are tested on clean and on shifted data."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from datetime import datetime
from numbers import Real
from pathlib import Path

import mmengine
from mmengine.config import Config
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner

from mmcalib import __version__
from mmcalib.checks import UserError
from mmcalib.hooks.drawing_hook import kept_statistics, tested_split
from mmcalib.hooks.one_view_hook import OneViewHook
from mmcalib.metrics import CalibrationMetric
from mmcalib.metrics.keys import ECE, QUALITIES, metric_name, number_text
from mmcalib.record import Record, model_label
from mmcalib.runs.checkpoint import Checkpoint, class_difference, classes_of
from mmcalib.runs.checks import check_run
from mmcalib.runs.config_checks import as_list, calibration_configs
from mmcalib.runs.config_tree import pipelines_of, plain, type_name
from mmcalib.runs.model import describe, load
from mmcalib.runs.progress import progress_of
from mmcalib.runs.test import evaluation
from mmcalib.tasks.robustness.result_files import collect, file_of, key_of, left_by_earlier_call
from mmcalib.tasks.robustness.shifts import Shift
from mmcalib.work_dir import experiment_name, whole_file

METRICS = ('ECE', 'AECE', 'NLL', 'AUGRC')
# Options of the calibration metric that ask for more than is compared here.
MORE = ('confidence_interval', 'num_bootstrap', 'seed', 'prefix', 'metrics', 'type')


def measure_robustness(cfg: Config) -> None:
    """Have a test measure the metrics that are compared under shift, and draw and log nothing else.

    These are the quality that the config measures, and ECE, AECE, NLL and AUGRC by the protocol,
    and bins of its first calibration metric.

    Raises:
        ValueError: For mmseg's test-time augmentation.
    """
    if type_name(cfg.model['type']) == 'SegTTAModel':
        raise ValueError(
            'under test-time augmentation mmseg keeps only the logits of the last view, not '
            'those of the prediction: use the config without it'
        )
    evaluator = cfg.get('test_evaluator')
    ours = [dict(metric) for metric, _ in calibration_configs(evaluator)]
    others = [m for m in as_list(evaluator) if dict(m) not in ours]
    first = next((m for m in ours if not m.get('prefix')), ours[0] if ours else {})
    options = {key: value for key, value in first.items() if key not in MORE}
    metric = dict(type='CalibrationMetric', metrics=list(METRICS), **options)
    cfg.test_evaluator = [*deepcopy(others), metric]
    hooks = cfg.get('default_hooks') or {}
    drawing = ('reliability_diagram', 'confidence_map', 'visualization')
    cfg.default_hooks = {k: hook for k, hook in hooks.items() if k not in drawing}
    cfg.default_hooks['logger'] = None  # a line for every few batches of each test


def run_robustness(
    runner: Runner, shifts: Sequence[Shift], checkpoints: Sequence[Checkpoint], *, index: int = 0
) -> dict:
    """Test checkpoints on all shifts, and return their part of ``robustness.json``.

    Each test leaves its metrics and statistics when it ends. A test that an earlier call has left
    is not repeated, if neither weights nor data nor options are others. The file collects all tests
    in the work dir with the same options and clean data, also those of earlier calls.

    Args:
        runner: Runner for a config that :func:`measure_robustness` has prepared.
        shifts: Those from :func:`~mmcalib.tasks.robustness.shifts.plan_shifts`, the clean data
            first.
        checkpoints: Of the config's model.
        index: The test image whose confidence map is kept, for a segmentor.

    Raises:
        UserError: If a checkpoint does not fit the model.
        UserError: If data are missing or have other classes, or there is no such image.
    """
    identities = [checkpoint.digest for checkpoint in checkpoints]
    _check_data(runner, shifts)
    size = len(runner.test_dataloader.dataset)
    if index >= size:
        raise UserError(f'--image {index}: the test data have {size:,} images, counted from 0')
    hook = OneViewHook(index)
    runner.register_hook(hook)
    content = {
        'experiment': experiment_name(runner.cfg.filename),
        'split': tested_split(runner),
        'limit': runner.cfg.get('limit'),
        'date': datetime.now().astimezone().isoformat(timespec='seconds'),
        'version': __version__,
    }
    of_all = f'{content["experiment"]} {content["split"]}'
    settings = key_of(runner.cfg, shifts[0], of_all)
    plan = []
    for checkpoint, identity in zip(checkpoints, identities, strict=True):
        folder = Path(runner.work_dir, 'tests', f'{Path(checkpoint.path).stem}-{identity[:8]}')
        for shift in shifts:
            key = key_of(runner.cfg, shift, identity)
            plan.append((checkpoint, identity, shift, file_of(folder, shift), key))
    found = [left_by_earlier_call(file, key, index) for *_, file, key in plan]
    broadcast_object_list(found)  # of the first process, which alone writes files
    to_come = {file for (*_, file, _), left in zip(plan, found, strict=True) if left is None}
    content = collect(runner.work_dir, content, settings, to_come)
    runner.call_hook('before_run')
    for handler in runner.logger.handlers:
        if not isinstance(handler, logging.FileHandler):  # which has what single tests say
            handler.setLevel(logging.ERROR)
    shown, loaded, about = to_come and is_main_process(), None, None
    with progress_of('Testing', len(to_come)) if shown else nullcontext(lambda line: None) as say:
        for (checkpoint, identity, shift, file, key), left in zip(plan, found, strict=True):
            new = left is None
            if new and loaded is not checkpoint:
                names = classes_of(getattr(runner.test_dataloader.dataset, 'metainfo', None))
                load(runner.model, [checkpoint], names)
                loaded = checkpoint
            test = {'key': key, **_test(runner, shift, checkpoint, file, hook)} if new else left
            about = test.get('about', about)  # which clean tests have, the first of each checkpoint
            if new:
                say(_line(about, shift, test['test']['metrics']))
            if is_main_process():
                asked = {'settings': settings, 'digest': identity, 'checkpoint': checkpoint.path}
                with whole_file(file) as temporary:
                    mmengine.dump({**test, **asked, 'asked': time.time()}, temporary)
            to_come.discard(file)
            if shift is shifts[-1]:
                content = collect(runner.work_dir, content, settings, to_come)
    runner.call_hook('after_run')
    entries = [entry for entry in content['checkpoints'] if entry['digest'] in identities]
    return {**content, 'checkpoints': entries}


def _test(
    runner: Runner, shift: Shift, checkpoint: Checkpoint, file: Path, hook: OneViewHook
) -> dict:
    """Test the model on one shift, leave its statistics and map, and return its result."""
    _use(runner, shift)
    metric = next(m for m in runner.test_evaluator.metrics if isinstance(m, CalibrationMetric))
    measured = runner.test_loop.run().items()
    metrics = {name: float(value) for name, value in measured if isinstance(value, Real)}
    test = {'kind': shift.kind, 'name': shift.name, 'severity': shift.severity, **shift.made}
    found = {'test': {**test, 'metrics': metrics}}
    if shift.kind == 'clean':
        cfg, name = runner.cfg, experiment_name(runner.cfg.filename)
        steps = plain([part['pipeline'] for part in pipelines_of(cfg.test_dataloader.dataset)])
        record = Record(
            experiment=name,
            split=tested_split(runner),
            model=describe([cfg], [checkpoint], ['test']),
            evaluation=evaluation(runner, steps),
            metrics=metrics,
            date=datetime.now().astimezone().isoformat(timespec='seconds'),
            version=__version__,
        )
        label = model_label(record.model, experiment=name)
        found['about'] = {'label': label, 'seed': record.seed, **asdict(record)}
    if is_main_process():
        (statistics,) = kept_statistics([metric]).values()
        with whole_file(file.with_suffix('.npz')) as path:
            statistics.save(path)
        found['test']['statistics'] = str(file.with_suffix('.npz').relative_to(runner.work_dir))
        if hook.view is not None:
            from mmcalib.visualization import ConfidenceMaps

            meta = runner.test_dataloader.dataset.metainfo
            style = dict(classes=list(meta['classes']), palette=meta.get('palette'))
            view = file.with_name(f'{file.stem}_map.npz')
            ConfidenceMaps([hook.view], [], **style).save(view)
            found['test']['map'] = str(view.relative_to(runner.work_dir))
            found['image'] = hook.view.index
    return found


def _use(runner: Runner, shift: Shift) -> None:
    """Have the runner's next test take the data of a shift, and new metrics."""
    runner._test_dataloader = deepcopy(shift.loader)
    runner._test_evaluator = deepcopy(runner.cfg.test_evaluator)
    # Results take the description of the evaluation from the config.
    runner.cfg.test_dataloader = deepcopy(shift.loader)
    runner._test_loop = runner.build_test_loop(deepcopy(runner.cfg.test_cfg))


def _check_data(runner: Runner, shifts: Sequence[Shift]) -> None:
    """Raise a UserError if data are missing or broken, or their classes are others."""
    first = next((shift for shift in shifts if shift.kind == 'corruption'), None)
    names = []
    for shift in shifts:
        if shift.kind != 'corruption' or shift is first:
            _use(runner, shift)
            try:
                check_run(runner, ['test'])
            except UserError as error:
                raise UserError(f'{shift.text}: {error}') from error
            dataset = runner.test_dataloader.dataset
            here = classes_of(getattr(dataset, 'metainfo', None))
            names = names or here
            if shift.kind == 'data' and names and here and here != names:
                raise UserError(
                    f'--data {shift.name} has other classes: {class_difference(names, here)}'
                )
    _use(runner, shifts[0])


def _line(about: Mapping, shift: Shift, metrics: Mapping) -> str:
    """Return the checkpoint, the quality and the ECE of a test that has ended."""
    shown = [key for key in (*QUALITIES, ECE) if key in metrics]
    values = ', '.join(f'{metric_name(key)} {number_text(metrics[key], key)} %' for key in shown)
    return f'{about["label"]}, seed {about["seed"]}, {shift.text}: {values}'
