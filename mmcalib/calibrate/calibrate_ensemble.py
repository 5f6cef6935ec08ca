"""A temperature for an ensemble, fitted and written to a file.

No layer of a model could take it up, since the mean comes after the softmax.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import torch
from mmengine.runner import Runner
from torch import Tensor

from mmcalib.calibrate.before_and_after import COMPARED_METRICS
from mmcalib.calibrate.calibrate_checkpoint import (
    CalibrationOptions,
    fit_to_split,
    ignore_index_of,
    load_model_and_data,
    made_now,
)
from mmcalib.calibrate.calibration_checks import check_splits
from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.metrics import CalibrationMetric
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import TemperatureScaler
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.posthoc.model_logits import progress
from mmcalib.runs.tested_model import ENSEMBLE
from mmcalib.samples.evaluated import read_labels
from mmcalib.samples.probabilities import temper
from mmcalib.work_dir_files import whole_file


def fit_temperature(
    runner: Runner,
    scaler: TemperatureScaler,
    out: str,
    options: CalibrationOptions,
) -> dict:
    """Fit a temperature to the logarithm of a mean, and write it with what it was fitted on.

    Args:
        runner: Of the config that
            :func:`~mmcalib.runs.ensemble_config.average_predictions` made.
        scaler: Not fitted yet.
        out: The JSON file to write.
        options: See :class:`~mmcalib.calibrate.calibrate_checkpoint.CalibrationOptions`.

    Returns:
        What the file says.

    Raises:
        ValueError: If the scaling is no temperature; for what
            :mod:`~mmcalib.calibrate.calibration_checks` refuses; for data that determine none.
    """
    if not isinstance(scaler, TemperatureScaler):
        raise ValueError(
            f'{type(scaler).__name__}: a mean can be calibrated by a temperature alone, since a '
            'shift or a matrix fits no member; take --method temperature'
        )
    forced = check_splits(runner.cfg, options)
    loaders = load_model_and_data(runner, options)
    model = runner.model
    fitted_on, folds, fold_of = fit_to_split(scaler, runner, loaders[options.split], options)

    def temperature_of(image: int) -> float:
        return (scaler if fold_of is None else folds[int(fold_of[image])]).temperature_

    results = {
        split: measure_tempered(model, loader, temperature_of, options, split)
        for split, loader in loaders.items()
    }
    binary = getattr(head_of(model.module), 'out_channels', None) == 1
    content = {
        'temperature': scaler.temperature_,
        'method': 'temperature',
        'options': {'criterion': scaler.criterion},
        **fitted_on,
        'model': runner.cfg[ENSEMBLE]['model'],
        'threshold': model.threshold if binary else None,
        'fitted': results[options.split],
        'tested': results.get('test'),
        'forced': forced,
        **made_now(),
    }
    with whole_file(out) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
    runner.call_hook('after_run')
    return content


def measure_tempered(
    model: MeanProbabilityModel,
    loader: Iterable,
    temperature_of: Callable[[int], float],
    options: CalibrationOptions,
    split: str,
) -> dict:
    """Return the metrics of a split before and after tempering, by the temperature of an image."""
    ignore_index = ignore_index_of(model)
    before, after = (
        CalibrationMetric(COMPARED_METRICS, num_bins=options.num_bins, ignore_index=ignore_index)
        for _ in range(2)
    )
    total = changed = images = 0
    model.eval()
    with torch.no_grad(), full_precision():
        for batch in progress(loader, f'Before and after, {split}'):
            samples = model.test_step(batch)
            before.process(None, [sample.to_dict() for sample in samples])
            first = [_predicted(sample.to_dict(), ignore_index) for sample in samples]
            for place, sample in enumerate(samples, start=images):
                temper(sample, temperature_of(place), threshold=model.threshold)
            after.process(None, [sample.to_dict() for sample in samples])
            for one, sample in zip(first, samples, strict=True):
                changed += int((one != _predicted(sample.to_dict(), ignore_index)).sum())
                total += len(one)
            images += len(samples)
    values = [
        {key.split('/')[-1]: value for key, value in metric.evaluate(images).items()}
        for metric in (before, after)
    ]
    return {'before': values[0], 'after': values[1], 'num_predictions': total, 'changed': changed}


def _predicted(sample: Mapping, ignore_index: int) -> Tensor:
    if 'pred_sem_seg' in sample:
        return read_labels(sample, ignore_index=ignore_index, name='a sample')[0]
    return sample['pred_label']
