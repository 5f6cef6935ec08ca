"""A fitted scaler in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mmcalib import __version__
from mmcalib.checks import UserError
from mmcalib.work_dir_files import whole_file

if TYPE_CHECKING:
    from mmcalib.posthoc.logit_scaler import LogitScaler

_KEYS = {'method', 'options', 'parameters', 'num_logits', 'version'}


def save_scaler(scaler: LogitScaler, path: str | Path) -> None:
    """Write method, options and parameters as JSON, whole or not at all.

    Raises:
        NotFittedError: Before the fit.
    """
    from mmcalib.posthoc.methods import SCALERS  # which has to know every scaler first

    names = {scaler_type: name for name, scaler_type in SCALERS.items()}
    content = dict(
        method=names[type(scaler)],
        options=scaler.options,
        parameters=scaler.parameters,
        num_logits=scaler.num_logits_,
        version=__version__,
    )
    with whole_file(path) as temporary:
        Path(temporary).write_text(json.dumps(content, allow_nan=False) + '\n', encoding='utf-8')


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
    from mmcalib.posthoc.methods import SCALERS

    try:
        content = json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise UserError(
            f'{path} is not JSON, so it is not a scaler that save() wrote: {error}'
        ) from error
    if not isinstance(content, dict) or content.keys() != _KEYS:
        raise UserError(f'{path} is not a scaler that save() wrote, which has {sorted(_KEYS)}')
    method = content['method']
    if method not in SCALERS:
        raise UserError(
            f'{path} has the method {method!r} of mmcalib {content["version"]}; this is '
            f'{__version__}, which knows {", ".join(SCALERS)}'
        )
    scaler = SCALERS[method].from_parameters(content['parameters'], **content['options'])
    scaler.num_logits_ = content['num_logits']
    return scaler
