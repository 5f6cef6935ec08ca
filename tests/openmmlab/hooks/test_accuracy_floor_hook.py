"""The best checkpoint above a floor of accuracy, against a search over all validations."""

import logging
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from mmcalib.commands.train import best_checkpoint


class Run(SimpleNamespace):
    """A training that saves empty files."""

    def __init__(self, folder, hub, epoch=0):
        self.hook = HOOKS.build(
            dict(type='AccuracyFloorCheckpointHook', save_best='calibration/ECE', rule='less',
                 accuracy='accuracy/top1', min_accuracy=0.9)
        )  # fmt: skip
        super().__init__(
            work_dir=str(folder), epoch=epoch, iter=0, logger=logging.getLogger('test'),
            message_hub=hub, hooks=[self.hook],
        )  # fmt: skip
        self.hook.before_train(self)

    def save_checkpoint(self, folder, filename, **kwargs):
        Path(folder, filename).touch()

    def validate(self, accuracy, error):
        """Return the number of the best checkpoint, which is the only one that is kept."""
        self.epoch += 1
        self.hook.after_val_epoch(self, {'accuracy/top1': accuracy, 'calibration/ECE': error})
        files = [str(path) for path in Path(self.work_dir).glob('best_*')]
        assert files == [path for path in [best_checkpoint(self)] if path]
        return int(Path(files[0]).stem.split('_')[-1]) if files else None


@pytest.mark.parametrize('seed', range(30))
def test_it_is_the_best_of_all_above_the_floor_of_their_time(seed, tmp_path):
    rng, nan = random.Random(seed), float('nan')
    # Few values, so that some are equal.
    validations = [
        [rng.choice([rng.randint(*ends)] * 9 + [nan]) for ends in ((30, 80), (0, 20))]
        for _ in range(rng.randint(1, 12))
    ]
    run, stop = Run(tmp_path, MessageHub(f'floor{rng.random()}')), rng.randint(0, 12)
    highest, best, of_best, chosen = 0, float('inf'), 0, None
    for number, (accuracy, error) in enumerate(validations, 1):
        if number == stop:  # and goes on
            run = Run(tmp_path, run.message_hub, run.epoch)
        highest = max(highest, accuracy)
        best = best if of_best >= 0.9 * highest else float('inf')
        if accuracy >= 0.9 * highest and error < best:
            best, of_best, chosen = error, accuracy, number
        assert run.validate(accuracy, error) == chosen
