"""Calibrations beside a model: what folds into no layer, or is a method that cannot be folded."""

import copy
import json
import os
import re
from pathlib import Path

import pytest
import torch
from commands import ROOT, call_here
from forked import call_forked
from mmengine.registry import MODELS, init_default_scope
from tiny_models import classifier, images, other_head, scenes, segmentor
from torch import nn

from mmcalib.checks import UserError
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import AttachedScaling, attached
from mmcalib.posthoc.attached_model import attach
from mmcalib.posthoc.before_and_after import before_and_after
from mmcalib.posthoc.model_logits import draw_predictions, predictions, predictor
from mmcalib.runs.checkpoint import checkpoint_of, fill
from mmcalib.runs.config import load_config
from mmcalib.tasks.calibrate.apply import layers_for

DIGITS = ROOT / 'configs/ce/digits.py'
SCENES = ROOT / 'configs/ce/digit_scenes.py'
FEW_DIGITS = [f'{split}_dataloader.dataset.indices=60' for split in ('val', 'test')]
FEW_SCENES = [f'{split}_dataloader.dataset.indices=6' for split in ('val', 'test')]
# Heads of the toolboxes whose last layer absorbs nothing.
NORMALISED = [
    'model.head.type=ArcFaceClsHead',
    'model.head.loss.type=CrossEntropyLoss',
]
MASKS = dict(
    type='mmseg.SegmenterMaskTransformerHead', in_channels=8, channels=8, num_classes=4,
    num_layers=1, num_heads=1, embed_dims=8, dropout_ratio=0.0,
)  # fmt: skip


@MODELS.register_module(force=True)
class MaskClassifier(nn.Module):
    """Scores as Mask2Former's: probabilities of queries' classes times those of their masks."""

    num_classes, out_channels, align_corners = 4, 4, False

    def __init__(self):
        super().__init__()
        self.masks = nn.Conv2d(8, 6, 1)
        self.classes = nn.Parameter(torch.randn(6, 5))

    def predict(self, inputs, *_):
        queries = self.classes.softmax(dim=1)[:, :-1]
        return torch.einsum('qk,nqhw->nkhw', queries, self.masks(inputs[0]).sigmoid())


MODELS_AND_DATA = {
    'classifier': lambda: (
        classifier(dict(type='mmpretrain.LinearClsHead', num_classes=5, in_channels=8)),
        images(num_classes=5),
    ),
    'segmentor': lambda: (segmentor(MASKS), scenes()),
    'mask classifier': lambda: (segmentor(dict(type='MaskClassifier')), scenes()),
    'binary segmentor': lambda: (
        segmentor(
            other_head('mmseg.FCNHead', num_convs=1, num_classes=2, out_channels=1, threshold=0.4)
        ),
        scenes(num_classes=2),
    ),
}


def cases():
    for name in MODELS_AND_DATA:
        head = 'sigmoid' if name.startswith('binary') else 'softmax'
        for method, kind in SCALERS.items():
            if head in kind.heads:
                yield pytest.param(name, method, id=f'{name}-{method}')


def measured(model, loader, scaler):
    head = head_of(model)
    threshold = getattr(head, 'thr', getattr(head, 'threshold', 0.5))
    images = predictions(model, loader, '', of_samples=True)
    return before_and_after(images, [scaler], threshold=threshold)


def fitted(method, model, loader):
    scaler = SCALERS[method]()
    drawn = draw_predictions(model, loader, of_samples=True)
    return scaler.fit(drawn.logits, drawn.labels, drawn.images)


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(('name', 'method'), cases())
def test_an_attached_model_predicts_what_the_scaler_says(name, method):
    model, loader = MODELS_AND_DATA[name]()
    scaler = fitted(method, model, loader)
    state = model.state_dict()
    with predictor(model, of_samples=True) as predict:
        before = [image for batch in loader for image in predict(batch)]
    kept = [copy.deepcopy(image.sample) for image in before]

    calibrated = attach(copy.deepcopy(model), AttachedScaling(method)).eval()
    filled = attached(scaler).state_dict(prefix='calibration.')
    fill(calibrated, checkpoint_of({**state, **filled}, 'c.pth'))
    assert isinstance(calibrated, type(model))
    assert set(calibrated.state_dict()) == {*state, *filled}
    again = copy.deepcopy(calibrated)
    with predictor(again, of_samples=True) as predict:
        after = [image for batch in loader for image in predict(batch)]
    for one, sample, other in zip(before, kept, after, strict=True):
        logits = other.logits[None]
        found = logits.sigmoid() if len(other.logits) == 1 else logits.softmax(1)
        expected = scaler.predict_proba(one.logits[None])[:, -len(other.logits) :]
        torch.testing.assert_close(found, expected.to(found), rtol=1e-4, atol=1e-5)
        if scaler.keeps_argmax and len(other.logits) > 1:
            key = 'pred_label' if 'pred_label' in sample else 'pred_sem_seg'
            was, now = sample[key], other.sample[key]
            was, now = (x if torch.is_tensor(x) else x['data'] for x in (was, now))
            assert torch.equal(was, now)


def test_scores_of_masks_become_probabilities():
    model, loader = MODELS_AND_DATA['mask classifier']()
    with predictor(model, of_samples=True) as predict:
        (image, *_) = predict(loader[0])
    scores = image.sample['seg_logits']['data']
    torch.testing.assert_close(image.logits.softmax(0), scores / scores.sum(0))
    layers, reason = layers_for(model, SCALERS['temperature'](), loader[0])
    assert not layers and 'no linear layer' in reason
    result = measured(model, loader, fitted('temperature', model, loader))
    assert result['changed'] == 0 and result['after']['NLL'] < result['before']['NLL']


def test_the_model_itself_stays():
    model, loader = MODELS_AND_DATA['classifier']()
    scaler = SCALERS['temperature'].from_parameters({'temperature': 3.0})
    calibrated = attach(copy.deepcopy(model), attached(scaler))
    batch = loader[0]
    with torch.no_grad():
        logits = model(batch['inputs'], mode='tensor')
        assert torch.equal(calibrated(batch['inputs'], mode='tensor'), logits)
        losses = [
            m(batch['inputs'], batch['data_samples'], mode='loss') for m in (model, calibrated)
        ]
        assert torch.equal(losses[0]['loss'], losses[1]['loss'])
        torch.testing.assert_close(calibrated.calibration(logits), logits / 3)


class TestACheckpointAndAConfigThatDoNotGoTogether:
    def test_no_calibration_in_the_checkpoint(self):
        model, loader = MODELS_AND_DATA['classifier']()
        calibrated = attach(copy.deepcopy(model), AttachedScaling('temperature'))
        with pytest.raises(UserError, match='its checkpoint holds none'):
            calibrated.val_step(loader[0])
        with pytest.raises(UserError, match=r'lacks 1 .*calibration\.temperature'):
            fill(calibrated, checkpoint_of(model.state_dict(), 'c.pth'))

    def test_no_calibration_in_the_config(self):
        model, _ = MODELS_AND_DATA['classifier']()
        state = {**model.state_dict(), 'calibration.temperature': torch.tensor(2.0)}
        with pytest.raises(UserError, match='is attached, and the config has none'):
            fill(model, checkpoint_of(state, 'c.pth'))


@pytest.fixture(scope='module')
def normalised(tmp_path_factory):
    """A checkpoint of random weights whose head normalises its features."""
    path = tmp_path_factory.mktemp('normalised') / 'arc.pth'
    cfg = load_config(str(DIGITS), dict(option.split('=') for option in NORMALISED))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    torch.save({'state_dict': model.state_dict(), 'meta': {'epoch': 1, 'seed': 0}}, path)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call_tool(tool, *arguments, fails=False):
        if fails:
            with pytest.raises(SystemExit):
                call_here(tool, *arguments, monkeypatch=monkeypatch)
        else:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        found = capsys.readouterr()
        return found.err if fails else found.out

    return call_tool


def test_the_tool_attaches_what_it_cannot_fold(normalised, run, tmp_path):
    own = "custom_imports.imports=['mmcalib','tiny_models']"
    options = ['--cfg-options', *NORMALISED, *FEW_DIGITS, own]
    output = run(
        'calibrate.py', DIGITS, normalised, '--out', 'out.pth', '--work-dir', 'work', '--test',
        *options,
    )  # fmt: skip
    content = torch.load('out.pth', weights_only=False)
    meta = content['meta']['calibration']
    assert 'Attached behind the model, because CalibratedImageClassifier' not in output
    assert 'Attached behind the model, because ImageClassifier has no linear' in output
    assert 'Written: out.pth' in output and 'out.py' in output
    assert meta['layers'] == [] and 'no linear layer' in meta['attached']
    assert meta['tested']['after']['NLL'] < meta['tested']['before']['NLL']
    assert meta['fitted']['changed'] == 0
    original = torch.load(normalised, weights_only=False)['state_dict']
    added = set(content['state_dict']) - set(original)
    assert added == {'calibration.temperature', 'calibration.about'}
    assert all(torch.equal(content['state_dict'][key], value) for key, value in original.items())
    cfg = load_config('out.py')
    assert cfg.model.type == 'CalibratedModel' and cfg.model.calibrates == 'ImageClassifier'
    assert cfg.custom_imports['imports'] == ['mmcalib', 'tiny_models']

    tested = meta['tested']['after']
    run('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    ours = json.loads(Path('tested/results.json').read_text())['metrics']
    mmpretrain = pytest.importorskip('mmpretrain')
    tool = Path(mmpretrain.__file__).parent / '.mim/tools/test.py'
    call_forked(
        os.path.relpath(tool, ROOT / 'tools'), 'out.py', 'out.pth', '--work-dir', 'own',
        '--out', 'own.json', '--out-item', 'metrics', cwd=tmp_path,
    )  # fmt: skip
    theirs = json.loads(Path('own.json').read_text())
    for name in ('ECE', 'AECE'):
        assert ours[f'calibration/{name}'] == pytest.approx(tested[name], abs=1e-3)
        assert theirs[f'calibration/{name}'] == pytest.approx(tested[name], abs=1e-3)

    error = run('test.py', DIGITS, 'out.pth', '--work-dir', 'w', *options, fails=True)
    assert 'is attached, and the config has none: use the config' in error
    error = run('test.py', 'out.py', normalised, '--work-dir', 'w2', fails=True)
    assert 'calibration.temperature' in error
    wrong = (
        Path('out.py').read_text().replace("method='temperature'", "method='class-temperatures'")
    )
    Path('wrong.py').write_text(re.sub(r"criterion='nll',?", '', wrong))
    error = run('test.py', 'wrong.py', 'out.pth', '--work-dir', 'w5', fails=True)
    assert "method must be one of ('class-temperatures',), got 'temperature'" in error
    assert 'tools/calibrate.py wrote' in error and not Path('w5/results.json').exists()
    error = run(
        'calibrate.py', 'out.py', 'out.pth', '--out', 'again.pth', '--work-dir', 'w3', '--force',
        fails=True,
    )  # fmt: skip
    assert 'attached scaling (temperature)' in error
    error = run('train.py', 'out.py', '--work-dir', 'w4', fails=True)
    assert 'calibrate again' in error
    error = run(
        'calibrate.py', DIGITS, normalised, '--out', 'out.pth', '--work-dir', 'work', *options,
        fails=True,
    )  # fmt: skip
    assert 'out.pth exists' in error
    os.remove('out.pth')
    error = run(
        'calibrate.py', DIGITS, normalised, '--out', 'out.pth', '--work-dir', 'work', *options,
        fails=True,
    )  # fmt: skip
    assert 'out.py exists' in error


@pytest.fixture(scope='module')
def scenes_checkpoint(tmp_path_factory):
    from test_calibrate import write_checkpoint

    path = tmp_path_factory.mktemp('scenes') / 'ce.pth'
    return write_checkpoint(path, SCENES, 'decode_head.conv_seg')


@pytest.mark.parametrize('method', ['ets', 'class-temperatures'])
def test_mmseg_tests_an_attached_calibration(method, scenes_checkpoint, run, tmp_path):
    output = run(
        'calibrate.py', SCENES, scenes_checkpoint, '--out', 'out.pth', '--work-dir', 'work',
        '--test', '--method', method, '--cfg-options', *FEW_SCENES,
    )  # fmt: skip
    assert f'{method} scaling is no affine map of logits' in output
    meta = torch.load('out.pth', weights_only=False)['meta']['calibration']
    assert meta['fitted']['changed'] == meta['tested']['changed'] == 0
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']
    mmseg = pytest.importorskip('mmseg')
    tool = Path(mmseg.__file__).parent / '.mim/tools/test.py'
    log = call_forked(
        os.path.relpath(tool, ROOT / 'tools'), 'out.py', 'out.pth', '--work-dir', 'own',
        cwd=tmp_path,
    )  # fmt: skip
    for name in ('ECE', 'AECE'):
        found = float(re.findall(rf'calibration/{name}: ([\d.]+)', log)[-1])
        assert found == pytest.approx(meta['tested']['after'][name], abs=1e-3)


def labelled_images(num_classes=5, with_scores=True):
    """Images with several labels, or none, and one of each that is not to be judged."""
    loader = images(num_classes=num_classes)
    generator = torch.Generator().manual_seed(3)
    for sample in loader.dataset:
        score = torch.randint(2, (num_classes,), generator=generator).float()
        sample.set_gt_label(score.nonzero()[:, 0])
        if with_scores:
            score[1] = -1
            sample.set_gt_score(score)
    return loader


@pytest.mark.parametrize('with_scores', [True, False])
@pytest.mark.parametrize('method', ['temperature', 'platt', 'isotonic'])
def test_several_labels_for_an_image(method, with_scores):
    init_default_scope('mmpretrain')
    head = dict(type='mmpretrain.MultiLabelLinearClsHead', num_classes=5, in_channels=8, thr=0.4)
    model, loader = classifier(head), labelled_images(with_scores=with_scores)
    scaler = SCALERS[method]()
    assert layers_for(model, scaler, loader[0]) == ([], 'each class has a separate sigmoid')
    drawn = draw_predictions(model, loader, of_samples=True)
    # By hand, one class after the other.
    with torch.no_grad():
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    kept = [k for k in range(5) if not (with_scores and k == 1)]
    truth = [[int(k in s.gt_label.tolist()) for k in kept] for s in loader.dataset]
    assert drawn.labels.tolist() == [y for row in truth for y in row]
    torch.testing.assert_close(drawn.logits[:, 0], logits[:, kept].flatten(), rtol=1e-4, atol=1e-4)
    drawn.fit(scaler)
    result = measured(model, loader, scaler)
    assert result['num_predictions'] == len(drawn.labels)
    assert result['after']['NLL'] < result['before']['NLL']
    calibrated = attach(copy.deepcopy(model), attached(scaler))
    for batch, own in zip(
        loader, logits.split([len(b['data_samples']) for b in loader]), strict=True
    ):
        for sample, z in zip(calibrated.val_step(batch), own, strict=True):
            expected = scaler.predict_proba(z[:, None])[:, 1]
            torch.testing.assert_close(sample.pred_score, expected, rtol=1e-3, atol=1e-4)
            assert sample.pred_label.tolist() == (sample.pred_score >= 0.4).nonzero()[:, 0].tolist()
