"""The plug-in for OpenMMLab: everything that is registered in mmengine, and nothing else."""

import mmengine  # noqa: F401  It comes first, so that no file of this folder is half imported.
