"""A short training of a linear classifier by a Runner, with options for what a test changes."""

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
    """Number of samples, since a run needs a metric; it raises in the validation `kill_at`."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.kill_at = kill_at
        self.num_validations = 0

    def process(self, data_batch, data_samples):
        self.results += [1] * len(data_samples)

    def compute_metrics(self, results):
        self.num_validations += 1
        if self.num_validations == self.kill_at:
            raise Killed
        return {'count': len(results)}


class Model(BaseModel):
    """A linear classifier that keeps `note(loss)` of each step and the logits of validations."""

    def __init__(self, loss, note):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, K)
        self.loss = loss
        self.note = note
        self.notes = []
        self.val_logits = []

    def forward(self, inputs, labels, mode):
        logits = 4 * self.layer(inputs)
        if mode == 'loss':
            self.notes.append(self.note(self.loss))
            return dict(loss=self.loss(logits, labels))
        self.val_logits += logits.tolist()
        predictions = zip(logits.softmax(1), labels[:, None], strict=True)
        return [dict(pred_score=score, gt_label=label) for score, label in predictions]


def train(
    work_dir, loss, *hooks, note=id, epochs=3, by_epoch=True, kill_at=None, resume=False, **cfg
):
    """Train with hooks, validating after each epoch, or after as many iterations."""

    def data_loader(seed):
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
        return DataLoader(list(zip(inputs, torch.arange(7) % K, strict=True)), batch_size=3)

    if by_epoch:
        interval = 1
        train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=interval)
    else:
        interval = STEPS
        train_cfg = dict(by_epoch=False, max_iters=STEPS * epochs, val_interval=interval)
    runner = Runner(
        Model(loss, note),
        str(work_dir),
        train_dataloader=data_loader(0),
        val_dataloader=data_loader(1),
        val_evaluator=[Count(kill_at)],
        val_cfg={},
        train_cfg=train_cfg | cfg,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e-3)),
        custom_hooks=hooks,
        resume=resume,
        experiment_name=f'{work_dir.name}_{next(NUMBERS)}',
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=interval, by_epoch=by_epoch),
            logger=dict(type='LoggerHook', interval=STEPS),
        ),
    )
    load_safely()  # Classic mmengine cannot read its own checkpoints on PyTorch 2.6.
    runner.train()
    return runner
