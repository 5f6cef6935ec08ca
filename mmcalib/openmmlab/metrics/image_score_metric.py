"""The registered metric for how far single images are to be trusted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.registry import METRICS

from mmcalib.errors import UserError
from mmcalib.files import check_writable, write_csv
from mmcalib.metrics.image_scores import (
    CLASSIFIER_SCORES,
    MEMBER_SCORES,
    RISKS,
    SCORES,
    compute_image_scores,
    image_failure_figures,
    image_risks,
    pairwise_dice,
)
from mmcalib.metrics.outcomes import check_predicted
from mmcalib.openmmlab.metrics.list_metric import ListMetric
from mmcalib.openmmlab.sample_writing import disagreement_in
from mmcalib.options import check_choice, check_choices, check_number
from mmcalib.predictions.image_predictions import IGNORED, class_columns


@METRICS.register_module()
class ImageScoreMetric(ListMetric):
    """Metric of how well scores of images separate good predictions from bad ones.

    It has ``AURC``, ``AUGRC``, ``AUROC`` and ``Spearman`` of
    :func:`~mmcalib.metrics.image_scores.image_failure_figures` for each score of
    :data:`~mmcalib.metrics.image_scores.SCORES`. A segmentor's scores
    are ``'confidence'``, ``'entropy'``, ``'foreground_confidence'``, ``'soft_dice'`` and
    ``'expected_iou'``, of all its pixels; a classifier's the first two. A mean that is tested with
    ``disagreement`` has two more: ``'pairwise_dice'`` of its predictions (segmentors only), and
    ``'mutual_information'`` in nats, which is taken as negative where images are ranked.

    Keys are ``image/soft_dice/AURC`` and so on, and ``image/risk``, the mean risk in percent. The
    two of a mean also have their own means, such as ``image/mutual_information``. An
    image without a labelled pixel has no risk and is left out. Without any image, all are NaN, with
    a warning.

    Args:
        scores: One or more of ``confidence``, ``entropy``, ``foreground_confidence``,
            ``soft_dice``, ``expected_iou``, ``pairwise_dice`` and ``mutual_information``.
        risk: For a segmentor ``'IoU'`` or ``'Dice'``, 1 minus the mean over the classes of an
            image, or ``'error'``, the share of wrong pixels; see
            :func:`~mmcalib.metrics.image_scores.image_risks`. A classifier's is 1 for an
            error, and 0 otherwise.
        failure: Risk above which an image counts as a failure, for AUROC.
        background: Class that is not an object; None for the one that the data set calls
            background.
        confidence_interval: Coverage of intervals over images; None for no intervals.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.
        out_file: Path of a ``.csv`` file for the risk and the scores of each image, for
            ``tools/visualize.py images``.
        **options: ``ignore_index``, as of :class:`CalibrationMetric`, and options of mmengine's
            ``BaseMetric``, such as ``prefix``.

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
        confidence_interval: float | None = 0.95,
        num_bootstrap: int = 1000,
        seed: int = 0,
        out_file: str | None = None,
        **options,
    ) -> None:
        super().__init__(**options)
        self.scores = check_choices('scores', scores, SCORES)
        self.risk = check_choice('risk', risk, RISKS)
        self.failure = check_number('failure', failure, most=1)
        self.background = background
        self.intervals = dict(
            confidence_interval=confidence_interval, num_bootstrap=num_bootstrap, seed=seed
        )
        self.out_file = out_file
        if out_file is not None:
            if Path(out_file).suffix != '.csv':
                raise UserError(f'out_file must be a .csv file, got {out_file!r}')
            check_writable(out_file)

    def read(self, sample: dict) -> tuple[str, float, list[float]]:
        """Return the name of an image, its risk and its scores."""
        predictions = self.read_predictions(sample)
        name = predictions.name
        background = None
        if predictions.are_maps:
            check_predicted(predictions.scores[0], predictions.predicted[0], name)
            background = self.background
            if background is None:
                background = self.dataset_background
        probs = class_columns(predictions.class_probabilities()).cpu()
        predicted = predictions.predicted.flatten().cpu()
        labels = predictions.labels.flatten().cpu()
        scores = compute_image_scores(probs, predicted, background=background)
        if not predictions.are_maps:
            scores = {score: scores[score] for score in CLASSIFIER_SCORES}
        disagreement = disagreement_in(sample)
        if 'mutual_information' in disagreement:
            information = disagreement['mutual_information']
            scores['mutual_information'] = float(information.mean(dtype=np.float64))
        if 'predictions' in disagreement:
            scores['pairwise_dice'] = pairwise_dice(
                disagreement['predictions'], background=background
            )
        for score in self.scores:
            if score not in scores:
                raise UserError(
                    f'{name} has no {score}, only {", ".join(scores)}: segmentations have more, '
                    'and so has a mean with its disagreement'
                )
        risks = image_risks(predicted, labels, background=background, ignore_index=IGNORED)
        risk = risks[self.risk] if predictions.are_maps else risks['error']
        return name, risk, [scores[score] for score in self.scores]

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Return the figures of all images."""
        if self.out_file is not None:
            rows = [[name, risk, *scores] for name, risk, scores in results]
            write_csv(self.out_file, [['image', 'risk', *self.scores], *rows])
        table = [[risk, *scores] for _, risk, scores in results]
        rows = torch.tensor(table, dtype=torch.float64, device='cpu').view(-1, 1 + len(self.scores))
        labelled = rows[~rows[:, 0].isnan()]
        if len(labelled) < len(rows) or not len(rows):
            self.log(
                f'{len(labelled)} of {len(rows)} images have a labelled pixel, and figures are of '
                'these',
                logging.WARNING,
            )
        risks = labelled[:, 0]
        values = {'risk': 100 * risks.mean().item()}
        for score, column in zip(self.scores, labelled[:, 1:].T, strict=True):
            if score in MEMBER_SCORES:
                values[score] = column.mean().item()
            trust = -column if score == 'mutual_information' else column
            figures = image_failure_figures(trust, risks, failure=self.failure, **self.intervals)
            for name, value in figures.items():
                values[f'{score}/{name}'] = value
        return values
