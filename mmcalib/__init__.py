"""Margin-based label smoothing, calibration metrics and post-hoc scaling, for OpenMMLab and torch.

The package registers its losses, metrics, hooks, datasets and models in mmengine's root registries
as soon as both packages are imported, in either order. Neither mmpretrain nor mmseg is imported.
Losses, metrics, scalers and :func:`calibrate` work without mmengine too.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from mmcalib.version import __version__ as __version__

# The modules of public names. Neither they nor torch are imported before the first use of a name,
# since torch takes 1.5 s and `mmcalib --help` half a second.
PUBLIC = {
    'calibrate': 'mmcalib.calibration.calibrate',
    'confidence_maps': 'mmcalib.visualization.confidence_maps',
    'compare': 'mmcalib.metrics.compare',
    'evaluate': 'mmcalib.metrics.evaluate',
    'image_calibration_diagram': 'mmcalib.visualization.image_calibration',
    'measure': 'mmcalib.metrics.measure',
    'predict': 'mmcalib.commands.predict.command',
    'reliability_diagram': 'mmcalib.visualization.reliability',
    'threshold': 'mmcalib.metrics.risk_threshold',
}
ROOMS = ('calibration', 'losses', 'metrics', 'openmmlab', 'posthoc', 'predictions', 'visualization')
__all__ = sorted(['__version__', 'register', *PUBLIC, *ROOMS])


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from mmcalib.calibration.calibrate import calibrate as calibrate
    from mmcalib.commands.predict.command import predict as predict
    from mmcalib.metrics.compare import compare as compare
    from mmcalib.metrics.evaluate import evaluate as evaluate
    from mmcalib.metrics.measure import measure as measure
    from mmcalib.metrics.risk_threshold import threshold as threshold
    from mmcalib.visualization.confidence_maps import confidence_maps as confidence_maps
    from mmcalib.visualization.image_calibration import (
        image_calibration_diagram as image_calibration_diagram,
    )
    from mmcalib.visualization.reliability import reliability_diagram as reliability_diagram
else:

    def __getattr__(name: str) -> object:
        if name not in ROOMS and name not in PUBLIC:
            raise AttributeError(f'module mmcalib has no attribute {name!r}{_other_place(name)}')
        try:
            if name in ROOMS:
                return import_module(f'mmcalib.{name}')
            return getattr(import_module(PUBLIC[name]), name)
        except ModuleNotFoundError as error:
            if error.name != 'mmengine':
                raise
            raise ModuleNotFoundError(
                f"mmcalib.{name} needs mmengine: pip install 'mmcalib[onedl]' (the maintained "
                "fork, the default), or 'mmcalib[openmmlab]' (classic OpenMMLab); never both",
                name='mmengine',
            ) from error


def _other_place(name: str) -> str:
    """Return where in the library a name is that the package itself lacks, '' if nowhere.

    torch is imported only for names that begin as those of classes do, since tools ask any module
    for names of their own.
    """
    if name[:1].isupper():
        for room in ('losses', 'metrics', 'posthoc'):
            if hasattr(import_module(f'mmcalib.{room}'), name):
                return f': from mmcalib.{room} import {name}'
    return ''


@cache
def register() -> None:
    """Register every class of the plug-in in mmengine's root registries.

    It is done by itself once both mmcalib and mmengine are imported.

    Raises:
        ModuleNotFoundError: If mmengine is not installed.
    """
    import_module('mmcalib.openmmlab.register')


class RegisterAfterMMEngine(threading.local):
    """An import hook that calls :func:`register` once mmengine has been imported, whoever does it.

    So ``import mmcalib`` takes no time where mmengine is never used, and yet the order of the
    imports does not matter. It stays on ``sys.meta_path`` until mmengine has been executed, since
    packages ask for the spec of mmengine only to look whether it is installed. Only the plug-in is
    imported while it registers, whose package imports mmengine first, so that none of its modules
    is half imported then.
    """

    is_searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of mmengine, whose execution ends with the registration."""
        if name != 'mmengine' or self.is_searching:
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
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                register()

        spec.loader.exec_module = execute_and_register
        return spec


def _register_once_both_are_imported() -> None:
    if sys.modules.get('mmengine'):  # None stands for a package that a test hides.
        register()
    elif not any(type(finder).__name__ == 'RegisterAfterMMEngine' for finder in sys.meta_path):
        sys.meta_path.insert(0, RegisterAfterMMEngine())


_register_once_both_are_imported()
