"""Exports of models that mmseg and mmpretrain ship, with random weights, by PyTorch's exporters.

They take minutes, so they run with ``--all-configs`` alone, and print the table of
docs/howto/export.md::

    pytest -n 0 -s -q --all-configs tests/commands/export/test_stock_models.py | grep '^|'
"""

import time

import pytest
from stock_models import build_model

from mmcalib.commands.export.network import PredictingNetwork
from mmcalib.commands.export.onnx_file import FREE_AXES, find_onnx_file, random_image

# The height and width of an image, and the exporter that writes the file.
EXPORTED = {
    'mmpretrain/resnet/resnet18_8xb16_cifar10.py': (32, 'torch.export'),
    'mmpretrain/deit/deit-tiny_4xb256_in1k.py': (224, 'torch.export'),
    'mmseg/deeplabv3/deeplabv3_r18-d8_4xb2-80k_cityscapes-512x1024.py': (64, 'torch.export'),
    'mmseg/segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': (64, 'torch.export'),
    'mmseg/unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py': (64, 'torch.export'),
    # torch.export finds constraints between the free sizes.
    'mmseg/stdc/stdc1_4xb12-80k_cityscapes-512x1024.py': (64, 'TorchScript'),
    'mmseg/fastscnn/fast_scnn_8xb4-160k_cityscapes-512x1024.py': (64, 'torch.export'),
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', EXPORTED)
def test_export_stock_model_by_expected_exporter(name, request):
    if not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    size, expected = EXPORTED[name]
    _, model = build_model(name)
    if name.startswith('mmseg'):
        model.test_cfg.mode = 'whole'
    network = PredictingNetwork(model).eval()
    start = time.process_time()
    onnx_file = find_onnx_file(
        network, random_image(model, (size, size)), free_axes=FREE_AXES, opset=18, tolerance=1e-4
    )
    seconds = time.process_time() - start
    cells = [
        name,
        onnx_file.exporter,
        ', '.join(onnx_file.free) or 'none',
        f'{onnx_file.difference:.0e}',
        f'{len(onnx_file.content) / 1e6:.1f}',
        f'{seconds:.0f}',
    ]
    print(f'\n| {" | ".join(cells)} |')
    for exporter, free, problem in onnx_file.failures:
        print(f'{exporter}, {free}: {problem}')
    assert onnx_file.exporter == expected
