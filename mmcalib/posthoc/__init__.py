"""Calibrating a trained model: fitting a scaling to its logits, putting it into the model.

Scalers are imported at their first use, since scikit-learn takes a second, and a training none.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from mmcalib import late_names

_MODULES = {
    'affine': ('MatrixScaler', 'TemperatureScaler', 'VectorScaler'),
    'attached_model': ('calibrated_model',),
    'binary': ('BetaScaler', 'PlattScaler'),
    'by_class': ('ClassConditionalScaler', 'PredictedClassTemperatureScaler'),
    'ets': ('EnsembleTemperatureScaler',),
    'isotonic': ('IsotonicScaler',),
    'methods': ('SCALERS', 'load_scaler'),
    'scaler': ('LogitScaler',),
}
_LATE = {name: f'{__name__}.{module}' for module, names in _MODULES.items() for name in names}
__all__ = sorted(_LATE)

if TYPE_CHECKING:
    from mmcalib.posthoc.affine import MatrixScaler, TemperatureScaler, VectorScaler
    from mmcalib.posthoc.attached_model import calibrated_model
    from mmcalib.posthoc.binary import BetaScaler, PlattScaler
    from mmcalib.posthoc.by_class import ClassConditionalScaler, PredictedClassTemperatureScaler
    from mmcalib.posthoc.ets import EnsembleTemperatureScaler
    from mmcalib.posthoc.isotonic import IsotonicScaler
    from mmcalib.posthoc.methods import SCALERS, load_scaler
    from mmcalib.posthoc.scaler import LogitScaler
else:
    __getattr__ = late_names(__name__, _LATE)


def __dir__() -> list[str]:
    return __all__
