"""Imported by what needs mmengine, for an error that says how to install it."""

try:
    import mmengine  # noqa: F401
except ImportError as error:
    raise ImportError(
        'this part of mmcalib needs mmengine. Install one of its two stacks: '
        "pip install 'mmcalib[onedl]' (maintained fork, the default) or "
        "pip install 'mmcalib[openmmlab]' (classic OpenMMLab); never both."
    ) from error
