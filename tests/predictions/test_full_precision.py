"""Full precision, whichever of PyTorch's two sets of switches was used before."""

import multiprocessing

import pytest
import torch

from mmcalib.predictions.full_precision import full_precision

BACKENDS = torch.backends
HAS_NEWER_SWITCHES = hasattr(BACKENDS.cudnn, 'conv')
# Statements of a user before the calibration.
SETTINGS = {
    'nothing': 'pass',
    'older, of convolutions': 'BACKENDS.cudnn.allow_tf32 = False',
    'older, of products': 'BACKENDS.cuda.matmul.allow_tf32 = True',
    'older, of all products': "torch.set_float32_matmul_precision('medium')",
    'newer, exact': "BACKENDS.fp32_precision = 'ieee'",
    'newer, rounded': "BACKENDS.fp32_precision = 'tf32'",
    'newer, of products': "BACKENDS.cuda.matmul.fp32_precision = 'tf32'",
    'newer, of convolutions': "BACKENDS.cudnn.conv.fp32_precision = 'ieee'",
}


def read_switch(holder, name):
    try:
        return getattr(holder, name)
    except RuntimeError:  # A newer switch was set.
        return 'mixed'


def read_switches():
    """Return the values of the older switches, and of the newer ones."""
    older = [
        read_switch(BACKENDS.cudnn, 'allow_tf32'),
        read_switch(BACKENDS.cuda.matmul, 'allow_tf32'),
    ]
    if not HAS_NEWER_SWITCHES:
        return older, []
    cudnn = BACKENDS.cudnn
    cpu = BACKENDS.mkldnn
    operations = (BACKENDS.cuda.matmul, cudnn.conv, cudnn.rnn, cpu.matmul, cpu.conv, cpu.rnn)
    return older, [operation.fp32_precision for operation in operations]


def check_full_precision(setting):
    exec(setting)
    switches_before = read_switches()
    with full_precision():
        older, newer = read_switches()
        assert True not in older or 'mixed' in older, older
        assert not {'tf32', 'bf16'} & set(newer) or 'mixed' not in older, newer
        assert 'bf16' not in newer
    assert read_switches() == switches_before, (switches_before, read_switches())


@pytest.mark.parametrize('setting', SETTINGS)
def test_full_precision_any_setting_is_set_back(setting):
    if 'newer' in setting and not HAS_NEWER_SWITCHES:
        pytest.skip('needs PyTorch 2.9, which has the newer switches')
    # In its own process, since the newer switches forbid the older ones from then on.
    context = multiprocessing.get_context('fork')
    process = context.Process(target=check_full_precision, args=(SETTINGS[setting],))
    process.start()
    process.join()
    assert process.exitcode == 0
