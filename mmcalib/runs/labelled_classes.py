"""The classes that a segmentor's data have labelled pixels of, and sentences about the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.openmmlab.samples import Sample, read_field
from mmcalib.runs.checkpoint import class_names
from mmcalib.texts import unlabelled_sentence

# After so many steps of a training, masks of a single class are warned of.
FIRST_STEPS = 20


class LabelledClassesHook(Hook):
    """Hook that notes which classes of a segmentor have labelled pixels, in trainings and tests.

    A training warns of the others before its first validation, or after its first epoch if that
    comes earlier, and of masks with a single class after a few steps: such as masks of 0 and 255,
    whose pixels are soon all right. It prevents lost hours.

    Attributes:
        labels: Labels in the masks on this process, the ignored one among them; empty for a
            classifier.
    """

    def __init__(self) -> None:
        self.labels: set[int] = set()
        self._num_images = 0
        self._is_training = False

    def before_train(self, runner: Runner) -> None:
        self.labels.clear()
        self._num_images = 0
        self._is_training = not runner.cfg.get('limit')  # Few images have few classes.
        self._classes = class_names(runner.train_dataloader.dataset)
        self._last_step = runner.iter + FIRST_STEPS

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs=None
    ) -> None:
        if not self._is_training:
            return
        samples = data_batch.get('data_samples', ()) if isinstance(data_batch, Mapping) else ()
        self._num_images += len(samples)
        if not self.labels.issuperset(range(len(self._classes))):
            self._note(samples)
        if runner.iter + 1 == self._last_step and is_main_process():
            sentences = unlabelled_classes(self.labels, self._classes)
            if len(sentences) > 1:  # There is only one class.
                warn_of_labels(sentences, self._num_images)

    def before_val(self, runner: Runner) -> None:
        if not self._is_training:
            return
        self._is_training = False  # It warns once.
        num_images = sum(all_gather_object(self._num_images))
        sentences = unlabelled_classes(self.all_labels(), self._classes)
        if sentences and is_main_process():
            warn_of_labels(sentences, num_images)

    after_train_epoch = before_val

    def before_test(self, runner: Runner) -> None:
        self.labels.clear()

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence[Sample] = ()
    ) -> None:
        self._note(outputs)

    def all_labels(self) -> set[int]:
        """Return the labels on all processes, which all have to ask."""
        return set().union(*all_gather_object(self.labels))

    def _note(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            labels = read_field(sample, 'gt_sem_seg')
            if labels is None or labels.is_floating_point() or not labels.numel():
                continue
            if labels.amin() < 0:  # Selecting takes ten times as long as counting.
                labels = labels[labels >= 0]
            self.labels.update(labels.flatten().bincount().nonzero().flatten().tolist())


def warn_of_labels(sentences: Sequence[str], num_images: int) -> None:
    """Warn of classes without labels among the images that a training has read."""
    read = f'Of {num_images:,} training images, repeats included'
    print_log(f'{read}: {" ".join(sentences)}', 'current', logging.WARNING)


def unlabelled_classes(labels: set[int], classes: Sequence[str]) -> list[str]:
    """Return sentences about the classes of a segmentor without a labelled pixel, mostly none.

    Args:
        labels: Labels in the masks, the ignored one among them; empty for a classifier.
        classes: Names of the classes of the data.
    """
    absent = [name for label, name in enumerate(classes) if label not in labels]
    if not labels or not absent:
        return []
    sentences = [unlabelled_sentence(absent)]
    if len(classes) - len(absent) == 1 and len(labels) > 1:
        values = ', '.join(str(label) for label in sorted(labels))
        sentences.append(
            f'The masks hold {values}, and only one of these is a class: write 0 to '
            f'{len(classes) - 1} into them.'
        )
    return sentences
