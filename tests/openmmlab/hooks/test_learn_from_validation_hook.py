"""Losses that learn from the validations of their training, on ranks and after resuming."""

from types import SimpleNamespace

import pytest
import references
import torch
from forked import on_ranks
from samples import classified, flatten, segmented
from tiny_models import fcn_head, segmentor
from tiny_run import K, Killed, train

from mmcalib.losses import AdaFocalLoss, CALSLoss, CombinedLoss
from mmcalib.metrics import measure
from mmcalib.openmmlab.datasets import Digits  # noqa: F401 (It is registered.)
from mmcalib.openmmlab.hooks import LearnFromValidationHook
from mmcalib.openmmlab.hooks.learn_from_validation_hook import edges_and_gaps
from mmcalib.openmmlab.sample_writing import logits_in
from mmcalib.runs.training_hooks import ResumeHook

LOSSES = {
    'cals': lambda: CALSLoss(K, margin=2.0, rho_interval=2),
    'ada focal': lambda: AdaFocalLoss(num_bins=3),
}


def learn(work_dir, name, *hooks, **options):
    loss = CombinedLoss([LOSSES[name](), torch.nn.CrossEntropyLoss()])
    runner = train(work_dir, loss, LearnFromValidationHook(), ResumeHook(), *hooks, **options)
    return runner, runner.model.loss.losses[0].state_dict()


def test_learn_from_validation_hook_with_ema_equals_loop(tmp_path):
    ema = dict(type='EMAHook', update_buffers=True)
    runner, state = learn(tmp_path, 'cals', ema, epochs=8, val_interval=2)
    rows = runner.model.val_logits
    multipliers = [1e-6] * K
    assert len(rows) == 28
    for start, rho in zip(range(0, 28, 7), (1.0, 1.0, 1.2, 1.2), strict=True):
        part = rows[start : start + 7]
        multipliers, penalty = references.cals_update(part, multipliers, rho, 2.0)
    assert state['multipliers'].tolist() == pytest.approx(multipliers, rel=1e-4)
    assert state['last_penalty'].item() == pytest.approx(penalty, rel=1e-4)
    logged = runner.message_hub.get_scalar('train/multiplier_max').current()
    assert logged == pytest.approx(max(multipliers), rel=1e-4)
    runner.val()  # This validation is not part of a training.
    assert state['num_updates'] == 4


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize(('name', 'by_epoch'), [('cals', True), ('ada focal', False)])
def test_learn_from_validation_hook_killed_and_resumed_equals_whole(name, by_epoch, tmp_path):
    _, expected = learn(tmp_path / 'whole', name, by_epoch=by_epoch)
    # The checkpoint of a step is saved before its validation, which is killed here.
    with pytest.raises(Killed):
        learn(tmp_path / 'killed', name, by_epoch=by_epoch, kill_at=2)
    _, state = learn(tmp_path / 'killed', name, by_epoch=by_epoch, resume=True)
    torch.testing.assert_close(state, expected, rtol=0, atol=0)


def test_learn_from_validation_hook_unsuitable_run_warns_or_raises():
    warnings = []
    digits = dict(type='Digits', split='val', indices=9, pipeline=[])
    val = dict(dataset=digits)
    other = dict(dataset=dict(digits, split='train'))
    same_images = dict(dataset=dict(type='RepeatDataset', times=2, dataset=digits))
    runner = SimpleNamespace(logger=SimpleNamespace(warning=warnings.append), val_loop=True)
    runner.train_loop = None
    runner.model = torch.nn.Sequential(CALSLoss(K))
    for test in (val, same_images, other, None):
        runner.cfg = dict(val_dataloader=val, test_dataloader=test)
        LearnFromValidationHook().before_train(runner)
    assert len(warnings) == 2
    for message in warnings:
        assert 'which a CALSLoss learns from, are the test data too' in message
    for model, val_loop, message in (
        (torch.nn.ReLU(), True, 'needs a CALSLoss or an AdaFocalLoss in the model'),
        (CALSLoss(K), None, 'CALSLoss learns from validations, but this training has none'),
    ):
        runner.model = model
        runner.val_loop = val_loop
        with pytest.raises(ValueError, match=message):
            LearnFromValidationHook().before_train(runner)


@pytest.mark.parametrize(('declared', 'expected'), [(None, 2), (255, 255)])
def test_learn_from_validation_hook_leaves_out_what_the_head_ignores(declared, expected):
    """A loss would learn from pixels that the training leaves out."""
    loss = dict(type='CALSLoss', num_classes=K)
    model = segmentor(fcn_head(num_classes=K, ignore_index=2, loss_decode=loss))
    runner = SimpleNamespace(model=model, val_loop=True, train_loop=None, cfg={})
    hook = LearnFromValidationHook(ignore_index=declared)
    hook.before_train(runner)
    assert hook.ignore_index == expected


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('by_epoch', [True, False])
def test_learn_from_validation_hook_needs_one_validation_before_the_last_step(by_epoch, tmp_path):
    """Validations come after steps 2 and 4, and after the last one."""
    unit = 1 if by_epoch else 3
    for epochs, num_updates in ((3, 2), (2, None)):
        options = dict(epochs=epochs, by_epoch=by_epoch, val_interval=2 * unit)
        if num_updates is None:
            with pytest.raises(ValueError, match=f'val_interval={2 * unit}'):
                learn(tmp_path / str(epochs), 'cals', **options)
        else:
            _, state = learn(tmp_path / str(epochs), 'cals', **options)
            assert state['num_updates'] == num_updates


def validate(losses, samples, size):
    """Run the hook over a validation without a Runner."""
    hook = LearnFromValidationHook()
    hook._losses = losses
    hook.before_val(None)
    hook.before_val_epoch(None)
    for start in range(0, len(samples), 2):
        hook.after_val_iter(None, 0, outputs=samples[start : start + 2])
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=range(size)))
    hub = SimpleNamespace(update_scalar=lambda *a: None)
    hook.after_val_epoch(SimpleNamespace(val_loop=loop, message_hub=hub))


def valid_logits(sample):
    """The logits of all valid predictions, for a classifier up to a constant."""
    if 'pred_score' in sample:
        return [sample['pred_score'].log().tolist()]
    valid = sample['gt_sem_seg']['data'][0] != 255
    return sample['seg_logits']['data'][:, valid].T.tolist()


@pytest.mark.parametrize('samples', [classified(12, K), segmented(3, K)], ids=['rows', 'maps'])
def test_learn_from_validation_hook_samples_of_both_toolboxes_equals_loop(samples):
    losses = [CALSLoss(K, margin=1.0), CALSLoss(K, margin=2.0), AdaFocalLoss(num_bins=3)]
    validate(losses, samples, len(samples))
    rows = [row for sample in samples for row in valid_logits(sample)]
    for loss in losses[:2]:
        expected, _ = references.cals_update(rows, [1e-6] * K, 1.0, loss.margin)
        assert loss.multipliers.tolist() == pytest.approx(expected, rel=1e-4)
    conf, correct = flatten(samples)
    edges, gammas = references.ada_focal_update(
        conf, correct, [1.0] * 3, rate=1.0, lowest=-2.0, highest=20.0, switch=0.2
    )
    assert len(set(gammas)) == 3
    assert losses[2].edges.tolist() == pytest.approx(edges, rel=1e-3)
    assert losses[2].gammas.tolist() == pytest.approx(gammas, rel=5e-3)


def test_edges_and_gaps_tied_confidences_share_bins():
    conf = torch.tensor([0.9, 0.5, 0.5, 0.7])
    correct = torch.tensor([True, False, True, True])
    narrow = measure(metrics=['ECE'], conf=conf, correct=correct).statistics.narrow_bins
    edges, gaps = edges_and_gaps(narrow, 2)
    assert edges == pytest.approx([0.7]) and gaps == pytest.approx([0.0, -0.2])
    edges, gaps = edges_and_gaps(narrow, 8)
    assert edges == pytest.approx([0.5] * 3 + [0.7] * 2 + [0.9] * 2)
    assert gaps == pytest.approx([0.0] * 4 + [-0.3] * 2 + [-0.1] * 2)
    logits = logits_in(dict(pred_score=torch.tensor([1.0, 0.0])))
    assert logits.isfinite().all() and -88 < logits[1] < -87


def _learn(rank, folder):
    samples = classified(7, K)
    share = samples
    if rank is not None:
        padded = samples + samples[:1]
        share = padded[rank::2]
    losses = [loss() for loss in LOSSES.values()]
    validate(losses, share, len(samples))
    torch.save([loss.state_dict() for loss in losses], f'{folder}/{rank}.pth')


def test_learn_from_validation_hook_two_ranks_equal_one(tmp_path):
    on_ranks(_learn, 2, str(tmp_path))
    _learn(None, tmp_path)
    expected = torch.load(tmp_path / 'None.pth')
    first = torch.load(tmp_path / '0.pth')
    second = torch.load(tmp_path / '1.pth')
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, expected)
    assert expected[0]['num_updates'] == 1
    assert expected[1]['gammas'].unique().numel() > 1
