"""The corruptions of ImageNet-C, by the groups in which results are given."""

from __future__ import annotations

from collections.abc import Iterable

from mmcalib.checks import check_choice

GROUPS = {
    'noise': ('gaussian_noise', 'shot_noise', 'impulse_noise'),
    'blur': ('defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur'),
    'weather': ('snow', 'frost', 'fog', 'brightness'),
    'digital': ('contrast', 'elastic_transform', 'pixelate', 'jpeg_compression'),
    # To choose by; the other four groups are the benchmark.
    'holdout': ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate'),
}
CORRUPTIONS = tuple(name for names in GROUPS.values() for name in names)
BENCHMARK = tuple(name for name in CORRUPTIONS if name not in GROUPS['holdout'])
SEVERITIES = (1, 2, 3, 4, 5)
# What may stand for several of them.
SETS = {'benchmark': BENCHMARK, 'all': CORRUPTIONS, **GROUPS}


def corruptions_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the corruptions that names of corruptions or of sets of them stand for, each once.

    Raises:
        ValueError: If a name is unknown.
    """
    found = set()
    for name in names:
        check_choice('corruption', name, (*SETS, *CORRUPTIONS))
        found |= {*SETS.get(name, (name,))}
    return tuple(name for name in CORRUPTIONS if name in found)
