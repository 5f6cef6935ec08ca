"""Margin-based label smoothing, calibration metrics and post-hoc scaling, for OpenMMLab and torch.

Importing the package registers its losses, metrics, hooks, datasets and models in mmengine's
root registries, which is all that ``custom_imports=dict(imports=['mmcalib'])`` does in a config.
A script that imports mmengine after it calls :func:`register`. Neither mmpretrain nor mmseg is
imported. Functions of arrays, losses and scalers work without mmengine too.
"""

# ruff: noqa: F401
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = '0.3.0'

# The module of each name, a room of the library or a function.
_ROOMS = ('datasets', 'ensembles', 'hooks', 'losses', 'metrics', 'models', 'posthoc')
_LATE = {room: f'{__name__}.{room}' for room in (*_ROOMS, 'transforms', 'visualization')}
_LATE |= {
    'calibrate': 'mmcalib.posthoc.calibrate_model',
    'evaluate': 'mmcalib.metrics.evaluate',
    'measure': 'mmcalib.metrics.measure',
    'predict': 'mmcalib.tasks.predict.predict',
    'reliability_diagram': 'mmcalib.visualization.reliability',
}
__all__ = sorted(['__version__', 'register', *_LATE])


def __dir__() -> list[str]:
    return __all__


def late_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``, which imports a name at its first use.

    Args:
        package: Its ``__name__``.
        modules: The module of each name; a submodule has its own.
    """

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        try:
            module = import_module(modules[name])
        except ModuleNotFoundError as error:
            if error.name != 'mmengine':
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs mmengine: pip install 'mmcalib[onedl]' (maintained fork, "
                "the default), or 'mmcalib[openmmlab]' (classic OpenMMLab); never both",
                name=error.name,
            ) from error
        return module if modules[name] == f'{package}.{name}' else getattr(module, name)

    return __getattr__


@cache
def register() -> None:
    """Register every class of the package in mmengine's root registries.

    Raises:
        ModuleNotFoundError: If mmengine is not installed.
    """
    for name in (
        'datasets',
        'ensembles',
        'hooks',
        'losses',
        'metrics.calibration_metric',
        'metrics.foreground_iou',
        'metrics.image_score_metric',
        'metrics.ood_metric',
        'models',
        'posthoc.attached_model',
        'transforms.corrupt',
        'transforms.segmentation',
    ):
        import_module(f'mmcalib.{name}')


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
    from mmcalib.metrics.evaluate import evaluate
    from mmcalib.metrics.measure import measure
    from mmcalib.posthoc.calibrate_model import calibrate
    from mmcalib.tasks.predict.predict import predict
    from mmcalib.visualization.reliability import reliability_diagram
else:
    __getattr__ = late_names(__name__, _LATE)

if 'mmengine' in sys.modules:
    register()
