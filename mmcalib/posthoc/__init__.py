"""Scalings of logits: temperature, vector, isotonic and others, in the manner of scikit-learn."""

from mmcalib.posthoc.affine import (
    MatrixScaler as MatrixScaler,
    TemperatureScaler as TemperatureScaler,
    VectorScaler as VectorScaler,
)
from mmcalib.posthoc.binary import BetaScaler as BetaScaler, PlattScaler as PlattScaler
from mmcalib.posthoc.by_class import (
    ClassConditionalScaler as ClassConditionalScaler,
    PredictedClassTemperatureScaler as PredictedClassTemperatureScaler,
)
from mmcalib.posthoc.class_prior import (
    estimate_class_prior as estimate_class_prior,
    shift_class_prior as shift_class_prior,
)
from mmcalib.posthoc.ets import EnsembleTemperatureScaler as EnsembleTemperatureScaler
from mmcalib.posthoc.isotonic import IsotonicScaler as IsotonicScaler
from mmcalib.posthoc.methods import SCALERS as SCALERS, load_scaler as load_scaler
from mmcalib.posthoc.scaler import LogitScaler as LogitScaler
