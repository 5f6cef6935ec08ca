"""The methods by the names that tools and configs call them, and a scaler out of its file."""

from __future__ import annotations

import json
from pathlib import Path

from mmcalib.errors import UserError
from mmcalib.options import check_choice
from mmcalib.posthoc import affine, binary, by_class, ets, isotonic
from mmcalib.posthoc.scaler import LogitScaler

SCALERS: dict[str, type[LogitScaler]] = {
    value.method: value
    for module in (affine, ets, isotonic, binary, by_class)
    for value in vars(module).values()
    if isinstance(value, type) and 'method' in vars(value)
}


def load_scaler(path: str | Path) -> LogitScaler:
    """Return the scaler that :meth:`LogitScaler.save` wrote.

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
        kind = SCALERS[check_choice('method', content['method'], tuple(SCALERS))]
        scaler = kind.from_parameters(content['parameters'], **content['options'])
        scaler.num_logits_ = content['num_logits']
        return scaler
    except (ValueError, KeyError, TypeError) as error:
        reason = f'lacks {error}' if isinstance(error, KeyError) else error
        raise UserError(f'{path} is not a scaler that save() wrote: {reason}') from error
