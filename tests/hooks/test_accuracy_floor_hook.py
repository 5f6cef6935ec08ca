"""The best checkpoint above a floor of accuracy, against a search over all validations."""

import logging
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from mmcalib.runs.train import best_checkpoint


class Run(SimpleNamespace):
    """A training that saves empty files."""

    def __init__(self, folder, hub=None):
        self.hook = HOOKS.build(
            dict(type='AccuracyFloorCheckpointHook', save_best='calibration/ECE', rule='less',
                 accuracy='accuracy/top1', min_accuracy=0.9)
        )  # fmt: skip
        super().__init__(
            work_dir=str(folder), epoch=0, iter=0, logger=logging.getLogger('test'),
            message_hub=hub or MessageHub(f'floor{random.random()}'), hooks=[self.hook],
        )  # fmt: skip
        self.hook.before_train(self)

    def save_checkpoint(self, folder, filename, **kwargs):
        Path(folder, filename).touch()

    def validate(self, accuracy, error):
        self.epoch += 1
        metrics = {'accuracy/top1': accuracy, 'calibration/ECE': error}
        self.hook.after_val_epoch(self, metrics)

    @property
    def files(self):
        return sorted(int(path.stem.split('_')[-1]) for path in Path(self.work_dir).glob('best_*'))


@pytest.mark.parametrize('seed', range(30))
def test_it_is_the_best_of_all_above_the_floor_of_their_time(seed, tmp_path):
    rng = random.Random(seed)
    # Few values, so that some are equal.
    validations = [(rng.randint(30, 80), rng.randint(0, 20)) for _ in range(rng.randint(1, 12))]
    run, stop, highest, best = Run(tmp_path), rng.randint(0, 12), 0, None
    chosen = 1
    for number, (accuracy, error) in enumerate(validations, 1):
        if number == stop:  # and goes on
            epoch, run = run.epoch, Run(tmp_path, run.message_hub)
            run.epoch = epoch
        run.validate(accuracy, error)
        highest = max(highest, accuracy)
        if best and validations[best - 1][0] < 0.9 * highest:
            best = None
        if accuracy >= 0.9 * highest and (best is None or error < validations[best - 1][1]):
            best = number
        best = best or chosen  # until the next that is above the floor
        chosen = int(Path(best_checkpoint(run)).stem.split('_')[-1])
        assert chosen == best and run.files == [best]


def test_nan_is_never_the_best(tmp_path):
    run = Run(tmp_path)
    run.validate(float('nan'), 1.0)
    run.validate(40.0, float('nan'))
    assert best_checkpoint(run) is None and run.files == []
    run.validate(40.0, 5.0)
    assert run.files == [3]
