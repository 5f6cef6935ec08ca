"""Full precision, whichever of PyTorch's two sets of switches was used before."""

import multiprocessing

import pytest
import torch

from mmcalib.predictions.full_precision import full_precision

BACKENDS = torch.backends
NEWER = hasattr(BACKENDS.cudnn, 'conv')
# What a user may have set.
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


def read(holder, name):
    try:
        return getattr(holder, name)
    except RuntimeError:  # the newer one was set
        return 'mixed'


def states():
    older = [read(BACKENDS.cudnn, 'allow_tf32'), read(BACKENDS.cuda.matmul, 'allow_tf32')]
    if not NEWER:
        return older, []
    cudnn, cpu = BACKENDS.cudnn, BACKENDS.mkldnn
    operations = (BACKENDS.cuda.matmul, cudnn.conv, cudnn.rnn, cpu.matmul, cpu.conv, cpu.rnn)
    return older, [operation.fp32_precision for operation in operations]


def check(setting):
    exec(setting)
    before = states()
    with full_precision():
        older, newer = states()
        assert True not in older or 'mixed' in older, older
        assert not {'tf32', 'bf16'} & set(newer) or 'mixed' not in older, newer
        assert 'bf16' not in newer
    assert states() == before, (before, states())


@pytest.mark.parametrize('name', SETTINGS)
def test_it_is_set_and_set_back(name):
    if 'newer' in name and not NEWER:
        pytest.skip('needs PyTorch 2.9, which has the newer switches')
    # In a process of its own, since what is set by the newer ones stays forbidden to the older.
    process = multiprocessing.get_context('fork').Process(target=check, args=(SETTINGS[name],))
    process.start()
    process.join()
    assert process.exitcode == 0
