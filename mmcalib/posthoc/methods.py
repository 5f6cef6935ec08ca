"""The scalers by the names of their methods in tools and configs, and a scaler from its file."""

from __future__ import annotations

import json
from pathlib import Path

from mmcalib.errors import UserError
from mmcalib.options import check_choice
from mmcalib.posthoc.affine import MatrixScaler, TemperatureScaler, VectorScaler
from mmcalib.posthoc.binary import BetaScaler, PlattScaler
from mmcalib.posthoc.by_class import ClassConditionalScaler, PredictedClassTemperatureScaler
from mmcalib.posthoc.ets import EnsembleTemperatureScaler
from mmcalib.posthoc.isotonic import IsotonicScaler
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler

# To add a scaling, write its class, and name it here and in choices.METHODS, which helps list.
SCALERS: dict[str, type[LogitScaler]] = {
    scaler.method: scaler
    for scaler in (
        TemperatureScaler,
        VectorScaler,
        MatrixScaler,
        EnsembleTemperatureScaler,
        IsotonicScaler,
        PlattScaler,
        BetaScaler,
        PredictedClassTemperatureScaler,
        ClassConditionalScaler,
    )
}


def load_scaler(path: str | Path) -> LogitScaler | ScalerPerLabel:
    """Return the scaler that :meth:`LogitScaler.save` wrote, or :meth:`ScalerPerLabel.save`.

    Example:
        Three lines, with neither a model nor a toolbox's config:

        >>> import numpy as np; from mmcalib.posthoc import TemperatureScaler, load_scaler
        >>> data = dict(logits=[[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]], labels=[0, 1, 1])
        >>> np.savez('held_out.npz', **data)

        >>> data = np.load('held_out.npz')
        >>> TemperatureScaler().fit(data['logits'], data['labels']).save('temperature.json')
        >>> load_scaler('temperature.json').predict_proba(data['logits'])[:, 0].round(3).tolist()
        [0.667, 0.333, 0.667]

    Raises:
        UserError: If it is no such file, or of a method that this version lacks.
    """
    try:
        content = json.loads(Path(path).read_text(encoding='utf-8'))
        scaler_class = SCALERS[check_choice('method', content['method'], tuple(SCALERS))]
        parameters = content['parameters']
        if isinstance(parameters, list):
            scalers = []
            for label_parameters in parameters:
                scaler = scaler_class.from_parameters(label_parameters, **content['options'])
                scaler.num_logits_ = 1
                scalers.append(scaler)
            return ScalerPerLabel(scalers, content['shared_labels'])
        scaler = scaler_class.from_parameters(parameters, **content['options'])
        if content['num_logits'] is not None:
            scaler.num_logits_ = content['num_logits']
        scaler.least_conf = content.get('least_conf')
        return scaler
    except (ValueError, LookupError, TypeError) as error:
        reason = f'lacks {error}' if isinstance(error, KeyError) else error
        raise UserError(f'{path} is not a scaler that save() wrote: {reason}') from error
