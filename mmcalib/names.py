"""Names and defaults that helps list and reports abbreviate, without an import of torch."""

from __future__ import annotations

from collections.abc import Iterable

from mmcalib.options import check_choice

METHODS = (
    *('temperature', 'vector', 'matrix', 'ets', 'isotonic', 'platt', 'beta'),
    *('class-temperatures', 'class-conditional'),
)
CRITERIA = ('nll', 'ece-grid')
NUM_SAMPLES = 200_000
PROTOCOLS = ('boundary', 'foreground', 'image', 'paper', 'pooled')
ROBUSTNESS_FIGURES = ('boxes', 'lines')
LITE_VARIANTS = (0, 1, 2)
# Of the shipped configs.
EVALUATIONS = ('paper', 'regions', 'mmseg', 'unseen')
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


# In the paper's order.
SHORT_NAMES = {
    'CrossEntropyLoss': 'CE',
    'ConfidencePenaltyLoss': 'ECP',
    'LabelSmoothingLoss': 'LS',
    'SoftmaxFocalLoss': 'FL',
    'SampleDependentFocalLoss': 'FLSD',
    'MarginLabelSmoothingLoss': 'MbLS',
    'BrierLoss': 'Brier',
    'DualFocalLoss': 'DFL',
    'InverseFocalLoss': 'IFL',
    'BSCELoss': 'BSCE',
    'MDCALoss': 'MDCA',
    'SVLSLoss': 'SVLS',
    'NACLLoss': 'NACL',
    'L1ACELoss': 'mL1-ACE',
    'ACLSLoss': 'ACLS',
    'CALSLoss': 'CALS',
    'AdaFocalLoss': 'AdaFocal',
}
SYMBOLS = {'margin': 'm', 'alpha': 'α', 'gamma': 'γ'}
