"""mmengine's registry of models; without mmengine, losses are modules of torch all the same."""

try:
    from mmengine.registry import MODELS as MODELS
except ImportError:

    class MODELS:
        """Registers nothing, so has nothing to build."""

        @staticmethod
        def register_module():
            return lambda kind: kind

        @staticmethod
        def build(cfg):
            import mmengine  # noqa: F401  raises
