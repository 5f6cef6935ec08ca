"""Names among which options choose, abbreviations, and defaults; torch is not imported."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from mmcalib.options import check_choice

AUTO = 'auto'  # the method that a calibration chooses itself
METHODS = (
    *('temperature', 'vector', 'matrix', 'ets', 'isotonic', 'platt', 'beta'),
    *('class-temperatures', 'class-conditional'),
)
CRITERIA = ('nll', 'ece-grid')
NUM_SAMPLES = 200_000
PROTOCOLS = ('boundary', 'foreground', 'image', 'paper', 'pooled')
ROBUSTNESS_FIGURES = ('boxes', 'lines')
LITE_VARIANTS = (0, 1, 2)
# Evaluations of the shipped configs.
EVALUATIONS = ('paper', 'regions', 'mmseg', 'unseen')
CORRUPTION_GROUPS = {
    'noise': ('gaussian_noise', 'shot_noise', 'impulse_noise'),
    'blur': ('defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur'),
    'weather': ('snow', 'frost', 'fog', 'brightness'),
    'digital': ('contrast', 'elastic_transform', 'pixelate', 'jpeg_compression'),
    # These serve to choose a method; the other four groups are the benchmark.
    'holdout': ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate'),
}
CORRUPTIONS = tuple(chain(*CORRUPTION_GROUPS.values()))
BENCHMARK = tuple(name for name in CORRUPTIONS if name not in CORRUPTION_GROUPS['holdout'])
SEVERITIES = (1, 2, 3, 4, 5)
# A name of a set stands for several corruptions.
CORRUPTION_SETS = {'benchmark': BENCHMARK, 'all': CORRUPTIONS, **CORRUPTION_GROUPS}


def select_corruptions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the corruptions that have some names, or are in sets with these names, each once.

    Raises:
        ValueError: If a name is unknown.
    """
    selected = set()
    for name in names:
        check_choice('corruption', name, (*CORRUPTION_SETS, *CORRUPTIONS))
        selected.update(CORRUPTION_SETS.get(name, (name,)))
    return tuple(name for name in CORRUPTIONS if name in selected)


# Abbreviations of the losses, in the paper's order.
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
# Parts of the keys of OOD metrics, and keys of the metainfo of a data set with OOD sets.
OOD_GROUPS = ('near', 'far')
