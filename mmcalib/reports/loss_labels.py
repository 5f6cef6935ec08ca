"""Names of losses in tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

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
# mmseg's default counts ignored pixels as well, which neither our losses nor the paper's code do.
COUNTS_VALID_PIXELS = ('avg_non_ignore', True)


def loss_label(loss: Mapping) -> str:
    """Return ``MbLS m=6 α=0.1`` and the like; of a sum of losses ``FL γ=3 + MDCA``."""
    if loss['type'] == 'CombinedLoss':
        return ' + '.join(loss_label(term) for term in loss['losses'])
    parts = [SHORT_NAMES.get(loss['type'], loss['type'])]
    others = sorted(key for key in loss if key not in SYMBOLS)
    for key in [*(key for key in SYMBOLS if key in loss), *others]:
        value = loss[key]
        if key != 'type' and (key, value) != COUNTS_VALID_PIXELS:
            text = f'{value:g}' if isinstance(value, float) else value
            parts.append(f'{SYMBOLS.get(key, key)}={text}')
    return ' '.join(parts)
