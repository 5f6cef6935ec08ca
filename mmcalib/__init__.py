"""Margin-based label smoothing, calibration metrics and post-hoc scaling, for OpenMMLab and torch.

Its losses, metrics, hooks, datasets and models are registered in mmengine's root registries as soon
as both packages are imported, in either order. In a config,
``custom_imports=dict(imports=['mmcalib'])`` does that. Neither mmpretrain nor mmseg is imported.
Functions of arrays, losses and scalers work without mmengine too.
"""

# ruff: noqa: F401
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

    This is done by itself once mmcalib and mmengine are imported.

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
    import_module('mmcalib.losses.registry').register_losses()


class RegisterAfterMMEngine(threading.local):
    """An import hook that calls :func:`register` once mmengine has been imported, whoever does it.

    So ``import mmcalib`` takes no time where mmengine is never used, and yet its order does not
    matter. Registering waits for modules of mmcalib that are half imported, since one of them may
    be what imports mmengine. The counts are of one thread, as imports are.
    """

    is_searching = False
    num_importing = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of mmengine or of a module of mmcalib, whose loading may register."""
        if self.is_searching or not (name == 'mmengine' or name.startswith('mmcalib.')):
            return None
        self.is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_searching = False
        if spec is None or not hasattr(spec.loader, 'exec_module'):
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            self.num_importing += 1
            try:
                execute(module)
            finally:
                self.num_importing -= 1
            is_outermost = self.num_importing == 0
            if is_outermost and sys.modules.get('mmengine') and self in sys.meta_path:
                sys.meta_path.remove(self)
                register()

        spec.loader.exec_module = execute_and_register
        return spec


def _register_once_both_are_imported() -> None:
    if sys.modules.get('mmengine'):  # None stands for a package that a test hides
        register()
    elif not any(type(finder).__name__ == 'RegisterAfterMMEngine' for finder in sys.meta_path):
        sys.meta_path.insert(0, RegisterAfterMMEngine())


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

_register_once_both_are_imported()
