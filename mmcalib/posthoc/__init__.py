"""Calibrating a trained model: fitting a scaling to its logits, putting it into the model.

Scalers are imported at their first use, since scikit-learn takes a second, and a training none.
"""

from typing import TYPE_CHECKING

from mmcalib.registration import late_names

if TYPE_CHECKING:
    from mmcalib.posthoc.affine import MatrixScaler, TemperatureScaler, VectorScaler
    from mmcalib.posthoc.attached import calibrated_model
    from mmcalib.posthoc.binary import BetaScaler, PlattScaler
    from mmcalib.posthoc.by_class import ClassConditionalScaler, PredictedClassTemperatureScaler
    from mmcalib.posthoc.ets import EnsembleTemperatureScaler
    from mmcalib.posthoc.isotonic import IsotonicScaler
    from mmcalib.posthoc.methods import SCALERS, load_scaler
    from mmcalib.posthoc.scaler import LogitScaler
else:
    __getattr__ = late_names(
        __name__,
        {
            'SCALERS': 'mmcalib.posthoc.methods',
            'BetaScaler': 'mmcalib.posthoc.binary',
            'ClassConditionalScaler': 'mmcalib.posthoc.by_class',
            'EnsembleTemperatureScaler': 'mmcalib.posthoc.ets',
            'IsotonicScaler': 'mmcalib.posthoc.isotonic',
            'LogitScaler': 'mmcalib.posthoc.scaler',
            'MatrixScaler': 'mmcalib.posthoc.affine',
            'PlattScaler': 'mmcalib.posthoc.binary',
            'PredictedClassTemperatureScaler': 'mmcalib.posthoc.by_class',
            'TemperatureScaler': 'mmcalib.posthoc.affine',
            'VectorScaler': 'mmcalib.posthoc.affine',
            'calibrated_model': 'mmcalib.posthoc.attached',
            'load_scaler': 'mmcalib.posthoc.methods',
        },
    )

__all__ = [
    'SCALERS',
    'BetaScaler',
    'ClassConditionalScaler',
    'EnsembleTemperatureScaler',
    'IsotonicScaler',
    'LogitScaler',
    'MatrixScaler',
    'PlattScaler',
    'PredictedClassTemperatureScaler',
    'TemperatureScaler',
    'VectorScaler',
    'calibrated_model',
    'load_scaler',
]


def __dir__() -> list[str]:
    return __all__
