"""A temperature for an ensemble, fitted and written to a file.

No layer of a model could take it up, since the mean comes after the softmax.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from mmengine.dist import is_main_process
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import TemperatureScaler
from mmcalib.runs.tested_model import ENSEMBLE
from mmcalib.samples.writing import temper
from mmcalib.tasks.calibrate.before_and_after import measure_changed_samples
from mmcalib.tasks.calibrate.calibrate_checkpoint import (
    CalibrationOptions,
    draw,
    fit_to_split,
    ignore_index_of,
    load_model_and_data,
    made_now,
)
from mmcalib.tasks.calibrate.calibration_checks import check_splits
from mmcalib.work_dir import whole_file


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
        options: See :class:`~mmcalib.tasks.calibrate.calibrate_checkpoint.CalibrationOptions`.

    Returns:
        What the file says.

    Raises:
        ValueError: If the scaling is no temperature; for what
            :mod:`~mmcalib.tasks.calibrate.calibration_checks` refuses; for data that determine
            none.
    """
    if not isinstance(scaler, TemperatureScaler):
        raise ValueError(
            f'--out {out}: only a temperature can calibrate a mean: use --method temperature'
        )
    forced = check_splits(runner.cfg, options)
    loaders = load_model_and_data(runner, options)
    model = runner.model
    drawn, group_of = draw(runner, loaders[options.split], options)
    fitted_on, folds, fold_of = fit_to_split(scaler, runner, options, drawn, group_of)

    def change(image: int, sample: BaseDataElement) -> float:
        own = scaler if fold_of is None else folds[int(fold_of[image])]
        temper(sample, own.temperature_, threshold=model.threshold)
        return 0.0

    results = {}
    for split, images in loaders.items():
        found = measure_changed_samples(
            model,
            images,
            change,
            num_bins=options.num_bins,
            ignore_index=ignore_index_of(model),
            text=f'Before and after, {split}',
        )
        results[split] = {k: v for k, v in asdict(found).items() if k != 'difference'}
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
    if is_main_process():
        with whole_file(out) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
    runner.call_hook('after_run')
    return content
