"""From finished runs to what people read: tables, figures and pages, without a Runner."""

import mmcalib.needs_mmengine  # noqa: F401
