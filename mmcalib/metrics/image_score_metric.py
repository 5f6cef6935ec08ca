"""The registered metric for how far single images are to be trusted."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from mmengine.logging import print_log
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.checks import check_choice, check_number
from mmcalib.metrics.bins.growing_array import GrowingArray
from mmcalib.metrics.functional.image_failures import image_failure_figures
from mmcalib.metrics.functional.image_scores import (
    OF_CLASSIFIERS,
    OF_MEMBERS,
    OF_SEGMENTORS,
    RISKS,
    SCORES,
    image_risks,
    pairwise_dice,
    scores_of,
)
from mmcalib.metrics.state_metric import StateMetric
from mmcalib.samples.probabilities import disagreement_in, member_predictions_in
from mmcalib.samples.reading import background_of, read_image
from mmcalib.work_dir_files import check_writable, whole_file


class ImageScoreState:
    """A row for each image: its place in the data set, its risk, and its scores."""

    def __init__(self, scores: Sequence[str]) -> None:
        self.scores = tuple(scores)
        self.names: dict[int, str] = {}
        self._rows = GrowingArray(2 + len(self.scores))

    def update(self, place: int, name: str, risk: float, scores: Mapping[str, float]) -> None:
        """Count an image."""
        self.names[place] = name
        values = [place, risk, *(scores[score] for score in self.scores)]
        self._rows.append(torch.tensor([values], dtype=torch.float64))

    def merge(self, other: ImageScoreState) -> ImageScoreState:
        """Add everything that `other` holds, and return self."""
        self.names |= other.names
        self._rows.append(other._rows.rows)
        return self

    @property
    def rows(self) -> Tensor:
        """``(n, 2 + S)`` float64 in the order of the data set: place, risk and scores."""
        return self._rows.rows[self._rows.rows[:, 0].argsort()]


@METRICS.register_module()
class ImageScoreMetric(StateMetric):
    """How well scores of images separate good predictions from bad ones.

    For each score, of :data:`~mmcalib.metrics.functional.image_scores.SCORES`, ``AURC``,
    ``AUGRC``, ``AUROC`` and ``Spearman`` of
    :func:`~mmcalib.metrics.functional.image_failures.image_failure_figures`. A segmentor's scores
    are ``'confidence'``, ``'entropy'``, ``'foreground_confidence'``, ``'soft_dice'``,
    ``'expected_dice'`` and ``'expected_iou'``, of all its pixels; a classifier's the first two. A
    mean that is tested with ``disagreement`` has three more: ``'pairwise_dice'`` of its
    predictions (segmentors only), ``'mutual_information'`` and ``'variance'``, both negative.

    Keys are ``image/soft_dice/AURC`` and so on, and ``image/risk``, the mean risk in percent. An
    image without a labelled pixel has no risk and is left out. Without any image, all are NaN, with
    a warning.

    Args:
        scores: One or more of ``confidence``, ``entropy``, ``foreground_confidence``,
            ``soft_dice``, ``expected_dice``, ``expected_iou``, ``pairwise_dice``,
            ``mutual_information`` and ``variance``.
        risk: For a segmentor ``'IoU'`` or ``'Dice'``, 1 minus the mean over the classes of an
            image, or ``'error'``, the share of wrong pixels; see
            :func:`~mmcalib.metrics.functional.image_scores.image_risks`. A classifier's is 1 for an
            error, and 0 otherwise.
        failure: Risk above which an image counts as a failure, for AUROC.
        background: Class that is not an object; if None, the one that the data set calls
            background.
        ignore_index: Label of the pixels to leave out of the risk.
        confidence_interval: Coverage of intervals over images, None for none.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.
        out_file: A ``.csv`` file with the risk and the scores of each image, for
            ``tools/visualize.py images``.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Replaces ``image`` in the keys.
        collect_dir: See mmengine's ``BaseMetric``.

    Raises:
        OSError: If `out_file` cannot be written.
        ValueError: For options out of range; while evaluating, for a sample without labels or a
            score that it does not have.
    """

    default_prefix = 'image'

    def __init__(
        self,
        scores: Sequence[str] = ('confidence',),
        *,
        risk: str = 'IoU',
        failure: float = 0.5,
        background: int | None = None,
        ignore_index: int = 255,
        confidence_interval: float | None = 0.95,
        num_bootstrap: int = 1000,
        seed: int = 0,
        out_file: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        self.scores = (scores,) if isinstance(scores, str) else tuple(dict.fromkeys(scores))
        if not self.scores:
            raise ValueError(f'scores must be some of {SCORES}, got none')
        for score in self.scores:
            check_choice('scores', score, SCORES)
        self.risk = check_choice('risk', risk, RISKS)
        self.failure = check_number('failure', failure, most=1)
        self.background = background
        self.ignore_index = ignore_index
        self.intervals = dict(
            confidence_interval=confidence_interval, num_bootstrap=num_bootstrap, seed=seed
        )
        self.out_file = out_file
        if out_file is not None:
            if Path(out_file).suffix != '.csv':
                raise ValueError(f'out_file must be a .csv file, got {out_file!r}')
            check_writable(out_file)
        self.reset()

    def _new_state(self) -> ImageScoreState:
        return ImageScoreState(self.scores)

    def _read(self, sample: dict) -> tuple[str, float, dict[str, float]]:
        name = self._name(sample)
        probs, predicted, label = read_image(sample, ignore_index=self.ignore_index, name=name)
        segmented = 'seg_logits' in sample
        background = None
        if segmented:
            background = self.background
            if background is None:
                background = background_of((self.dataset_meta or {}).get('classes'))
        found = scores_of(
            probs.flatten(1),
            predicted.flatten(),
            background=background,
            wanted=OF_SEGMENTORS if segmented else OF_CLASSIFIERS,
        )
        found |= {key: -float(maps.mean()) for key, maps in disagreement_in(sample).items()}
        members = member_predictions_in(sample)
        if members is not None:
            found['pairwise_dice'] = pairwise_dice(members, background=background)
        missing = [score for score in self.scores if score not in found]
        if missing:
            mean = 'take it from a mean of several predictions, with its disagreement'
            pixels = f'it is of segmentations: take some of {OF_CLASSIFIERS}'
            of_mean = missing[0] in OF_MEMBERS and (segmented or missing[0] != 'pairwise_dice')
            raise ValueError(f'{name} has no {missing[0]}: {mean if of_mean else pixels}')
        risks = image_risks(predicted, label, background=background, ignore_index=self.ignore_index)
        return name, risks[self.risk if segmented else 'error'], found

    def _update(self, image: tuple[str, float, dict[str, float]], place: int) -> None:
        self._state.update(place, *image)

    def _values_of(self, state: ImageScoreState) -> dict[str, float]:
        rows = state.rows
        if self.out_file is not None:
            self._write(state, rows)
        labelled = ~rows[:, 1].isnan()
        dropped = len(rows) - int(labelled.sum())
        if dropped or not len(rows):
            print_log(
                f'{type(self).__name__}: {dropped} of {len(rows)} images have no labelled pixel, '
                'so no risk' + ('' if labelled.any() else ', and every figure is NaN'),
                logger='current',
                level=logging.WARNING,
            )
        rows = rows[labelled]
        values = {'risk': 100 * rows[:, 1].mean().item()}
        for number, score in enumerate(self.scores, 2):
            figures = image_failure_figures(
                rows[:, number], rows[:, 1], failure=self.failure, **self.intervals
            )
            values |= {f'{score}/{name}': value for name, value in figures.items()}
        return values

    def _write(self, state: ImageScoreState, rows: Tensor) -> None:
        # Names of files may be no text.
        text = dict(newline='', encoding='utf-8', errors='backslashreplace')
        with whole_file(self.out_file) as path, path.open('w', **text) as file:
            writer = csv.writer(file)
            writer.writerow(['image', 'risk', *self.scores])
            for place, *values in rows.tolist():
                writer.writerow([state.names[int(place)], *values])
