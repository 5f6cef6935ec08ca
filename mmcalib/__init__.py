"""Margin-based label smoothing and calibration metrics for OpenMMLab.

Importing the package registers its losses, metrics, hooks, datasets and models in mmengine's
root registries, which is all that ``custom_imports=dict(imports=['mmcalib'])`` does in a config.
Neither mmpretrain nor mmseg is imported.
"""

__version__ = '0.2.0'

try:
    import mmengine  # noqa: F401
except ImportError as error:
    raise ImportError(
        'mmcalib needs mmengine. Install one of its two stacks: '
        "pip install 'mmcalib[onedl]' (maintained fork, the default) or "
        "pip install 'mmcalib[openmmlab]' (classic OpenMMLab); never both."
    ) from error

from mmcalib import datasets, ensembles, hooks, losses, metrics, models, posthoc, transforms

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
    'transforms',
]


def __getattr__(name: str) -> object:
    if name == 'predict':  # runs a model, which a config that imports the package does not
        from mmcalib.prediction.predict_images import predict

        return predict
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
