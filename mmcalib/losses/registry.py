"""Losses enter mmengine's registry of models once it is there, and need it for nothing else."""

from collections.abc import Callable, Mapping

from torch import nn

_WAITING: list[type[nn.Module]] = []


class MODELS:
    """Stands in for mmengine's registry, whose import takes seconds that torch alone need not."""

    @staticmethod
    def register_module() -> Callable[[type[nn.Module]], type[nn.Module]]:
        """Return a decorator that keeps a class for :func:`register_losses`."""

        def keep(kind: type[nn.Module]) -> type[nn.Module]:
            _WAITING.append(kind)
            return kind

        return keep

    @staticmethod
    def build(cfg: Mapping) -> nn.Module:
        """Build a loss by its config, as mmengine's registry does."""
        from mmengine.registry import MODELS

        return MODELS.build(cfg)


def register_losses() -> None:
    """Register the losses in mmengine's registry of models."""
    from mmengine.registry import MODELS

    while _WAITING:
        MODELS.register_module(module=_WAITING.pop())
