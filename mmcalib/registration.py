"""When the package's classes get into mmengine's registries, and how names are imported late.

Functions of arrays need no mmengine, whose hooks and Runner take two seconds to import. So
``import mmcalib`` registers all classes at once only where mmengine is imported already, as it is
when a config lists the package in ``custom_imports``. Elsewhere the first look-up in any registry
does it, and where mmengine is not installed, nothing is registered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from wrapt import register_post_import_hook

if TYPE_CHECKING:
    from mmengine.registry import Registry

# Below mmcalib. A room with functions of arrays names its modules.
REGISTERED = (
    'datasets',
    'ensembles',
    'hooks',
    'losses',
    'metrics.calibration_metric',
    'metrics.foreground_iou',
    'metrics.image_score_metric',
    'metrics.ood_metric',
    'models',
    'posthoc.attached',
    'transforms',
)
# Names that 0.3.0 was the last to have, and what to do; for one release. Types are capitalised.
GONE = {
    'CPCLoss': 'use MarginLabelSmoothingLoss',
    'TextDataPreprocessor': 'leave it out, Newsgroups20 gives ids',
    'PackText': "use PackInputs with input_key='ids'",
    'VocabularyHook': 'use WordVectorsHook',
    'DisagreementMetric': "use ImageScoreMetric(scores=['mutual_information'])",
    'expected_dice': 'use soft_dice',
    'variance': 'use mutual_information',
    'venn-abers': 'use platt or beta',
    'boundary-temperatures': 'use class-temperatures',
    'local': 'use class-conditional',
    '--all': 'use --samples',
    '--holdout': 'leave it out, since the figures are cross-fitted',
    'ClasswiseAECE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'TACE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'convention': 'leave it out, and call the other package for its number',
}


@cache
def register_all() -> None:
    """Register every class of the package in mmengine's root registries.

    Raises:
        ImportError: If mmengine is not installed.
    """
    for name in REGISTERED:
        import_module(f'mmcalib.{name}')
    registries = import_module('mmengine.registry')
    for name, instead in GONE.items():
        if not name[0].isupper():
            continue
        for kind in ('MODELS', 'METRICS', 'HOOKS', 'DATASETS', 'TRANSFORMS'):
            getattr(registries, kind).register_module(name=name, module=_refusal(name, instead))


def _refusal(name: str, instead: str) -> Callable:
    def gone(**options):
        raise ValueError(f'{name} is gone since 0.3.0: {instead}')

    return gone


def register() -> None:
    """Register every class now, or once mmengine is imported, at the first look-up in a registry.

    Nothing here imports mmengine, and with it torch, so that a command's help is there at once.
    """
    if 'mmengine' in sys.modules:
        register_all()
    else:
        register_post_import_hook(_register_at_first_look_up, 'mmengine')


def _register_at_first_look_up(mmengine: ModuleType) -> None:
    registry = mmengine.registry.Registry
    look_up, pending = registry.get, True

    # A toolbox's registry looks into mmengine's without a call, so this is for all of them.
    @wraps(look_up)
    def get(self: Registry, key: str) -> object:
        nonlocal pending
        if pending:
            pending = False
            register_all()
        return look_up(self, key)

    registry.get = get


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
        except ImportError:
            import mmcalib.needs_mmengine  # noqa: F401  where that is why, it says what to install

            raise
        return module if modules[name] == f'{package}.{name}' else getattr(module, name)

    return __getattr__
