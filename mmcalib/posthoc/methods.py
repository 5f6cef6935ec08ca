"""The methods by the names that tools and configs call them."""

from mmcalib.posthoc.binary_scalers import BetaScaler, PlattScaler
from mmcalib.posthoc.class_conditional_scaler import ClassConditionalScaler
from mmcalib.posthoc.ensemble_temperature_scaler import EnsembleTemperatureScaler
from mmcalib.posthoc.isotonic_scaler import IsotonicScaler
from mmcalib.posthoc.predicted_class_temperature_scaler import PredictedClassTemperatureScaler
from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler, VectorScaler

SCALERS = {
    'temperature': TemperatureScaler,
    'vector': VectorScaler,
    'matrix': MatrixScaler,
    'ets': EnsembleTemperatureScaler,
    'isotonic': IsotonicScaler,
    'platt': PlattScaler,
    'beta': BetaScaler,
    'class-temperatures': PredictedClassTemperatureScaler,
    'class-conditional': ClassConditionalScaler,
}
