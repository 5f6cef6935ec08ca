"""Losses that learn from the validations of their training: what counts, ranks, resuming."""

import types

import pytest
import references
import tiny_models
import torch
from forked import on_ranks
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmcalib.hooks import LearnFromValidationHook
from mmcalib.hooks.learn_from_validation_hook import edges_and_gaps
from mmcalib.hooks.resume_hook import ResumeHook
from mmcalib.losses import AdaFocalLoss, CALSLoss, CombinedLoss
from mmcalib.metrics.measure import counts_of
from mmcalib.samples.writing import logits_in

K = 5
KINDS = {
    'cals': lambda: CALSLoss(K, margin=2.0, rho_interval=2),
    'ada focal': lambda: AdaFocalLoss(num_bins=3),
}


class Killed(Exception):
    pass


class Count(BaseMetric):
    """A metric, of which a run must have one; raises in the validation that is to be killed."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.kill_at, self.passed = kill_at, 0

    def process(self, data_batch, data_samples):
        self.results += [1] * len(data_samples)

    def compute_metrics(self, results):
        self.passed += 1
        if self.passed == self.kill_at:
            raise Killed
        return {'count': len(results)}


class Model(BaseModel):
    """A linear classifier, whose loss is one of two that are added up."""

    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, K)
        self.loss = CombinedLoss([loss, torch.nn.CrossEntropyLoss()])
        self.validated = []

    def forward(self, inputs, labels, mode):
        logits = 4 * self.layer(inputs)
        if mode == 'loss':
            return dict(loss=self.loss(logits, labels))
        self.validated += logits.tolist()
        rows = zip(logits.softmax(1), labels[:, None], strict=True)
        return [dict(pred_score=score, gt_label=label) for score, label in rows]


def data(seed, size=7):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 3, generator=generator)
    return DataLoader(list(zip(inputs, (torch.arange(size) % K), strict=True)), batch_size=3)


def train(work_dir, kind, *, epochs=3, by_epoch=True, kill_at=None, resume=False, hooks=(), **cfg):
    runner = Runner(
        Model(KINDS[kind]()),
        str(work_dir),
        train_dataloader=data(0),
        val_dataloader=data(1),
        val_evaluator=[Count(kill_at)],
        val_cfg={},
        train_cfg=dict(by_epoch=True, max_epochs=epochs, **cfg)
        if by_epoch
        else dict(by_epoch=False, max_iters=3 * epochs, val_interval=3),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-3)),
        custom_hooks=[LearnFromValidationHook(), ResumeHook(), *hooks],
        resume=resume,
        experiment_name=f'{work_dir.name}_{kill_at}_{resume}_{torch.rand(()).item()}',
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=1 if by_epoch else 3, by_epoch=by_epoch)
        ),
    )
    runner.train()
    return runner


def learnt(runner):
    return {key: value.clone() for key, value in runner.model.loss.losses[0].state_dict().items()}


def test_a_training_equals_a_plain_loop(tmp_path):
    runner = train(tmp_path, 'cals', epochs=4, val_interval=2)
    rows, multipliers = runner.model.validated, [1e-6] * K
    assert len(rows) == 14
    for part in (rows[:7], rows[7:]):
        multipliers, penalty = references.cals_update(part, multipliers, 1.0, 2.0)
    state = learnt(runner)
    assert state['multipliers'].tolist() == pytest.approx(multipliers, rel=1e-4)
    assert state['last_penalty'].item() == pytest.approx(penalty, rel=1e-4)
    assert state['num_updates'] == 2
    logged = runner.message_hub.get_scalar('train/multiplier_max').current()
    assert logged == pytest.approx(max(multipliers), rel=1e-4)
    runner.val()  # no training's
    assert learnt(runner)['num_updates'] == 2


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize(('kind', 'by_epoch'), [('cals', True), ('ada focal', False)])
def test_killed_and_resumed_it_learns_the_same(kind, by_epoch, tmp_path):
    expected = learnt(train(tmp_path / 'whole', kind, by_epoch=by_epoch))
    # The checkpoint of a step is saved before its validation, which is killed here.
    with pytest.raises(Killed):
        train(tmp_path / 'killed', kind, by_epoch=by_epoch, kill_at=2)
    runner = train(tmp_path / 'killed', kind, by_epoch=by_epoch, resume=True)
    for key, value in learnt(runner).items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)


def test_the_average_of_the_weights_is_validated_and_the_trained_loss_learns(tmp_path):
    ema = dict(type='EMAHook', update_buffers=True)
    runner = train(tmp_path, 'cals', hooks=[ema], epochs=4)
    multipliers = [1e-6] * K
    for start, rho in zip(range(0, 28, 7), (1.0, 1.0, 1.2, 1.2), strict=True):
        rows = runner.model.validated[start : start + 7]
        multipliers, penalty = references.cals_update(rows, multipliers, rho, 2.0)
    state = learnt(runner)
    assert state['num_updates'] == 4
    assert state['multipliers'].tolist() == pytest.approx(multipliers, rel=1e-4)
    assert state['last_penalty'].item() == pytest.approx(penalty, rel=1e-4)


def test_data_that_are_tested_too_are_warned_of():
    warned = []
    loader = dict(dataset=dict(type='A', ann_file='val.txt'))
    other = dict(dataset=dict(type='A', ann_file='train.txt'))
    runner = types.SimpleNamespace(
        model=torch.nn.Sequential(CALSLoss(K)),
        val_loop=True,
        logger=types.SimpleNamespace(warning=warned.append),
    )
    for test in (loader, other, None):
        runner.cfg = dict(val_dataloader=loader, test_dataloader=test)
        LearnFromValidationHook().before_train(runner)
    (message,) = warned
    assert 'which a CALSLoss learns from, are the test data too' in message


@pytest.mark.parametrize(('model', 'val_loop'), [(torch.nn.ReLU(), True), (CALSLoss(K), None)])
def test_what_cannot_work_is_said_before_training(model, val_loop):
    runner = types.SimpleNamespace(model=torch.nn.Sequential(model), val_loop=val_loop)
    with pytest.raises(ValueError, match='needs a CALSLoss or an AdaFocalLoss in the model, and v'):
        LearnFromValidationHook().before_train(runner)


def validate(losses, samples, size):
    """Let a hook see a validation without a Runner."""
    hook = LearnFromValidationHook()
    hook._losses = losses
    hook.before_val(None)
    hook.before_val_epoch(None)
    for start in range(0, len(samples), 2):
        hook.after_val_iter(None, 0, outputs=samples[start : start + 2])
    loop = types.SimpleNamespace(
        dataloader=types.SimpleNamespace(dataset=range(size)), epoch=1, iter=1
    )
    hub = types.SimpleNamespace(update_scalar=lambda *a: None, update_info=lambda *a: None)
    runner = types.SimpleNamespace(val_loop=loop, train_loop=loop, message_hub=hub)
    hook.after_val_epoch(runner)


def predictions(size=7):
    generator = torch.Generator().manual_seed(0)
    scores = (4 * torch.randn(size, K, generator=generator)).softmax(1)
    return [
        dict(pred_score=score, gt_label=torch.tensor([i % K])) for i, score in enumerate(scores)
    ]


def test_a_validation_of_a_classifier():
    head = dict(type='mmpretrain.LinearClsHead', in_channels=8, num_classes=K)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = tiny_models.classifier(head)
    samples, rows = [], []
    for batch in tiny_models.images(num_classes=K):
        batch = model.data_preprocessor(batch)
        samples += model(**batch, mode='predict')
        rows += model(batch['inputs'], mode='tensor').tolist()
    loss = CALSLoss(K, margin=2.0)
    validate([loss], samples, len(samples))
    expected, _ = references.cals_update(rows, [1e-6] * K, 1.0, 2.0)
    assert loss.multipliers.tolist() == pytest.approx(expected, rel=1e-4)
    focal, conf, correct = AdaFocalLoss(num_bins=3), [], []
    validate([focal], samples, len(samples))
    for sample in samples:
        conf.append(sample.pred_score.max().item())
        correct.append(sample.pred_score.argmax().item() == sample.gt_label.item())
    options = dict(rate=1.0, lowest=-2.0, highest=20.0, switch=0.2)
    edges, gammas = references.ada_focal_update(conf, correct, [1.0] * 3, **options)
    assert focal.edges.tolist() == pytest.approx(edges)
    assert focal.gammas.tolist() == pytest.approx(gammas)
    assert len(set(gammas)) == 3
    with pytest.raises(ValueError, match=r'predicts 5 classes of .*, but CALSLoss has .*=6: set'):
        validate([CALSLoss(6)], samples, len(samples))


def test_a_validation_of_a_segmentor():
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = tiny_models.segmentor(tiny_models.fcn_head(num_classes=K))
    samples = [
        sample for batch in tiny_models.scenes(num_classes=K) for sample in model.test_step(batch)
    ]
    rows = [
        row
        for sample in samples
        for row, label in zip(
            sample.seg_logits.data.flatten(1).T.tolist(),
            sample.gt_sem_seg.data.flatten().tolist(),
            strict=True,
        )
        if label != 255
    ]
    loss, follower = CALSLoss(K, margin=1.0), CALSLoss(K, margin=2.0)
    validate([loss, follower], samples, len(samples))
    for each in (loss, follower):
        expected, _ = references.cals_update(rows, [1e-6] * K, 1.0, each.margin)
        assert each.multipliers.tolist() == pytest.approx(expected, rel=1e-4)


def test_bins_of_few_tied_or_many_confidences():
    conf = torch.tensor([0.9, 0.5, 0.5, 0.7])
    correct = torch.tensor([True, False, True, True])
    narrow = counts_of([], conf=conf, correct=correct).table
    edges, gaps = edges_and_gaps(narrow, 2)
    assert edges == pytest.approx([0.7]) and gaps == pytest.approx([0.0, -0.2])
    edges, gaps = edges_and_gaps(narrow, 8)
    assert edges == pytest.approx([0.5] * 3 + [0.7] * 2 + [0.9] * 2)
    assert gaps == pytest.approx([0.0] * 4 + [-0.3] * 2 + [-0.1] * 2)


def test_a_probability_of_zero_counts_as_the_least_there_is():
    logits = logits_in(dict(pred_score=torch.tensor([1.0, 0.0])))
    assert logits.isfinite().all() and -88 < logits[1] < -87


def _learn(rank, folder):
    samples = predictions()
    dealt = (samples + samples[:1])[rank::2]  # the last is padding
    for kind, loss in KINDS.items():
        mine = loss()
        validate([mine], dealt, len(samples))
        torch.save(mine.state_dict(), f'{folder}/{kind}{rank}.pth')


def test_two_ranks_learn_what_one_does(tmp_path):
    on_ranks(_learn, 2, str(tmp_path))
    for kind, loss in KINDS.items():
        alone, fresh = loss(), loss().state_dict()
        validate([alone], predictions(), 7)
        first, second = (torch.load(tmp_path / f'{kind}{rank}.pth') for rank in range(2))
        for key, value in alone.state_dict().items():
            assert torch.equal(first[key], second[key])
            torch.testing.assert_close(first[key], value)
        assert any(not torch.equal(fresh[key], first[key]) for key in fresh)
