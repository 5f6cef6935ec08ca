"""Scalings of logits: temperature, vector, isotonic and others, in the manner of scikit-learn."""

from mmcalib.posthoc.affine import MatrixScaler as MatrixScaler
from mmcalib.posthoc.affine import TemperatureScaler as TemperatureScaler
from mmcalib.posthoc.affine import VectorScaler as VectorScaler
from mmcalib.posthoc.binary import BetaScaler as BetaScaler
from mmcalib.posthoc.binary import PlattScaler as PlattScaler
from mmcalib.posthoc.by_class import ClassConditionalScaler as ClassConditionalScaler
from mmcalib.posthoc.by_class import (
    PredictedClassTemperatureScaler as PredictedClassTemperatureScaler,
)
from mmcalib.posthoc.class_prior import estimate_class_prior as estimate_class_prior
from mmcalib.posthoc.class_prior import shift_class_prior as shift_class_prior
from mmcalib.posthoc.ets import EnsembleTemperatureScaler as EnsembleTemperatureScaler
from mmcalib.posthoc.isotonic import IsotonicScaler as IsotonicScaler
from mmcalib.posthoc.methods import SCALERS as SCALERS
from mmcalib.posthoc.methods import load_scaler as load_scaler
from mmcalib.posthoc.scaler import LogitScaler as LogitScaler
