"""mmengine's registry of models; without mmengine, losses are modules of torch all the same."""

try:
    from mmengine.registry import MODELS as MODELS
except ImportError:

    class MODELS:
        """Registers nothing, so has nothing to build."""

        register_module = staticmethod(lambda: lambda kind: kind)
