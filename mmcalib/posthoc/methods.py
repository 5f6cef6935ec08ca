"""The methods by the names that tools and configs call them."""

from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler, VectorScaler

SCALERS = {'temperature': TemperatureScaler, 'vector': VectorScaler, 'matrix': MatrixScaler}
