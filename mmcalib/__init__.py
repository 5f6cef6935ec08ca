"""Margin-based label smoothing and calibration metrics for OpenMMLab.

Importing the package registers its losses, metrics, hooks, datasets and models in mmengine's
root registries, which is all that ``custom_imports=dict(imports=['mmcalib'])`` does in a config.
Neither mmpretrain nor mmseg is imported. Functions of arrays, losses and scalers work without
mmengine too.
"""

from typing import TYPE_CHECKING

from mmcalib.registration import late_names, register

if TYPE_CHECKING:
    from mmcalib import (
        datasets,
        ensembles,
        hooks,
        losses,
        metrics,
        models,
        posthoc,
        transforms,
        visualization,
    )
    from mmcalib.tasks.predict.predict_images import predict
    from mmcalib.visualization.diagram_of_arrays import reliability_diagram
else:
    __getattr__ = late_names(
        __name__,
        {
            'datasets': 'mmcalib.datasets',
            'ensembles': 'mmcalib.ensembles',
            'hooks': 'mmcalib.hooks',
            'losses': 'mmcalib.losses',
            'metrics': 'mmcalib.metrics',
            'models': 'mmcalib.models',
            'posthoc': 'mmcalib.posthoc',
            'predict': 'mmcalib.tasks.predict.predict_images',
            'reliability_diagram': 'mmcalib.visualization.diagram_of_arrays',
            'transforms': 'mmcalib.transforms',
            'visualization': 'mmcalib.visualization',
        },
    )

__version__ = '0.3.0'

__all__ = [
    '__version__',
    'datasets',
    'ensembles',
    'hooks',
    'losses',
    'metrics',
    'models',
    'posthoc',
    'predict',
    'reliability_diagram',
    'transforms',
    'visualization',
]


def __dir__() -> list[str]:
    return __all__


register()
