"""A short training of a linear classifier by a Runner, of which a test says what differs."""

import itertools

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmcalib.runs.safe_loading import load_safely

K = 5
STEPS = 3  # per epoch
NUMBERS = itertools.count()


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
    """A linear classifier; it has `note(loss)` of each step, and the logits of validations."""

    def __init__(self, loss, note):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss, self.note = torch.nn.Linear(3, K), loss, note
        self.noted, self.validated = [], []

    def forward(self, inputs, labels, mode):
        logits = 4 * self.layer(inputs)
        if mode == 'loss':
            self.noted.append(self.note(self.loss))
            return dict(loss=self.loss(logits, labels))
        self.validated += logits.tolist()
        rows = zip(logits.softmax(1), labels[:, None], strict=True)
        return [dict(pred_score=score, gt_label=label) for score, label in rows]


def train(
    work_dir, loss, *hooks, note=id, epochs=3, by_epoch=True, kill_at=None, resume=False, **cfg
):
    """Train with hooks, validating after each epoch, or after as many iterations."""

    def data(seed):
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
        return DataLoader(list(zip(inputs, torch.arange(7) % K, strict=True)), batch_size=3)

    length = dict(max_epochs=epochs) if by_epoch else dict(max_iters=STEPS * epochs)
    every = 1 if by_epoch else STEPS
    runner = Runner(
        Model(loss, note),
        str(work_dir),
        train_dataloader=data(0),
        val_dataloader=data(1),
        val_evaluator=[Count(kill_at)],
        val_cfg={},
        train_cfg=dict(by_epoch=by_epoch, val_interval=every, **length) | cfg,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-3)),
        custom_hooks=hooks,
        resume=resume,
        experiment_name=f'{work_dir.name}_{next(NUMBERS)}',
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=every, by_epoch=by_epoch),
            logger=dict(type='LoggerHook', interval=STEPS),
        ),
    )
    load_safely()  # classic mmengine cannot read its own on PyTorch 2.6
    runner.train()
    return runner
