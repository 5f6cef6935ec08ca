"""The mean of the probabilities of several models, views of an image and random dropouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from mmengine.model import BaseTTAModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import nn

from mmcalib.errors import UserError
from mmcalib.openmmlab.ensembles.batch_views import copies_of_image, views_of_batch
from mmcalib.openmmlab.ensembles.mc_dropout import dropout_layers, random_dropout, seed_of
from mmcalib.openmmlab.heads import check_softmax, classes_of_head, head_of
from mmcalib.openmmlab.sample_writing import (
    logits_in,
    probabilities_in,
    put_disagreement,
    put_logits,
    put_probabilities,
)
from mmcalib.options import check_integer, check_number
from mmcalib.predictions.mean import PredictionMean
from mmcalib.tensors import check_finite, check_probabilities, check_range

# By the places of a batch's images: the data sample to return, and the mean so far.
Found = dict[int, tuple[BaseDataElement, PredictionMean]]


@MODELS.register_module()
class MeanProbabilityModel(BaseTTAModel):
    r"""Predicts the mean probabilities of N predictions, as a model of either toolbox.

    .. math:: \bar p = \frac1N \sum_{i=1}^N \mathrm{softmax}(z_i)

    The predictions are those of each member, of each view of an image that a ``TestTimeAug`` in the
    pipeline makes, and of each pass with random dropout. The data samples are the toolbox's own:
    mmseg's ``seg_logits`` are :math:`\log \bar p` and ``pred_sem_seg`` is its argmax (of a binary
    head, as there, the mean probability and its threshold); mmpretrain's ``pred_score`` is
    :math:`\bar p`. So all metrics and hooks take them. Labels are those of the first view that is
    not flipped. In memory are two predictions and sums of all, however many there are.

    Its checkpoints are the members', see :func:`mmcalib.runs.model.load`.

    Args:
        module: The first member, or its config.
        others: The other members. Each prepares its inputs by its own ``data_preprocessor``.
        data_preprocessor: For members whose configs have none.
        mc_dropout: Number of passes with random dropout, with all other layers in evaluation mode;
            0 for none. They depend only on the seed and the image, not on its batch or process.
            Source: Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.
        passes_at_once: Number of passes computed as one batch. It affects the random draws.
        seed: Seed of the dropout.
        temperature: Divides :math:`\log \bar p` (of a binary head the logit of the mean), followed
            by a softmax.
        disagreement: Whether data samples get ``mutual_information``, see
            :class:`~mmcalib.predictions.mean.PredictionMean`: a number of a
            classifier's, in ``disagreement`` as a map ``(1, H, W)`` of a segmentor's, with the
            classes of each prediction, ``(N, H, W)``.

    Raises:
        TypeError: For options of another type.
        ValueError: For options out of range; for a model without dropout, or whose head's scores
            are no softmax of one logit per class, as far as its config tells.
        UserError: While predicting: for scores that are NaN, no probabilities, or of another
            shape; for images of a size that a member does not take.
    """

    def __init__(
        self,
        module: nn.Module | dict,
        *,
        others: Sequence[nn.Module | dict] = (),
        data_preprocessor: dict | None = None,
        mc_dropout: int = 0,
        passes_at_once: int = 1,
        seed: int = 0,
        temperature: float | None = None,
        disagreement: bool = False,
    ) -> None:
        members = [_built(member, data_preprocessor) for member in (module, *others)]
        super().__init__(members[0])
        self.others = nn.ModuleList(members[1:])
        self.mc_dropout = check_integer('mc_dropout', mc_dropout, least=0)
        self.passes_at_once = check_integer('passes_at_once', passes_at_once)
        self.seed = check_integer('seed', seed, least=0)
        self.temperature = temperature
        if temperature is not None:
            check_number('temperature', temperature, least=1e-6)
        self.disagreement = disagreement
        self.names = [f'member {number + 1}' for number in range(len(members))]
        self._checked: set[int] = set()
        classes = [classes_of_head(member) for member in members]
        for name, member, count in zip(self.names, members, classes, strict=True):
            check_softmax(member, name)
            if None not in (count, classes[0]) and count != classes[0]:
                raise UserError(
                    f'{name} has {count} classes, but member 1 has {classes[0]}: they cannot be '
                    'averaged'
                )
            if mc_dropout and not dropout_layers(member):
                raise UserError(
                    f'{name} has no dropout layer with a probability above 0, so all its passes '
                    'would be equal: leave out mc_dropout, or use the config that it was trained '
                    'with'
                )

    @property
    def members(self) -> list[nn.Module]:
        """All models."""
        return [self.module, *self.others]

    @property
    def threshold(self) -> float:
        """Above which probability a binary head of mmseg predicts its class."""
        return getattr(head_of(self.module), 'threshold', 0.5)

    def val_step(self, data: Mapping) -> list[BaseDataElement]:
        """Predict as in a test."""
        return self.test_step(data)

    def test_step(self, data: Mapping) -> list[BaseDataElement]:
        """Return a data sample with the mean for each image of a batch, with or without views."""
        found: Found = {}
        views = views_of_batch(data)
        for number, member in enumerate(self.members):
            for view in views:
                try:
                    for place, sample in self._predictions(member, view, number):
                        self._add(found, place, sample, number)
                except AssertionError as error:  # as of a U-Net that cannot halve a size
                    image = view['data_samples'][0].metainfo.get('img_path', 'an image')
                    hint = '; --tta-scales chooses the sizes of views' if len(views) > 1 else ''
                    raise UserError(
                        f'{self.names[number]}, of {image}: {str(error) or repr(error)}{hint}'
                    ) from error
            self._checked.add(number)
        return self._finished(found)

    def merge_preds(
        self, data_samples_list: Sequence[Sequence[BaseDataElement]]
    ) -> list[BaseDataElement]:
        """Return a data sample with the mean for each image's predictions."""
        found: Found = {}
        for place, samples in enumerate(data_samples_list):
            for sample in samples:
                self._add(found, place, sample, 0)
        return self._finished(found)

    def _predictions(
        self, member: nn.Module, view: Mapping, number: int
    ) -> Iterator[tuple[int, BaseDataElement]]:
        """Yield a member's predictions of a view, each with the place of its image."""
        if not self.mc_dropout:
            yield from enumerate(member.test_step(view))
            return
        for place, image in enumerate(view['inputs']):
            seed = seed_of(image, self.seed, number)
            with random_dropout(member, seed, torch.device(self.data_preprocessor.device)):
                for start in range(0, self.mc_dropout, self.passes_at_once):
                    count = min(self.passes_at_once, self.mc_dropout - start)
                    for sample in member.test_step(copies_of_image(view, place, count)):
                        yield place, sample

    def _add(self, found: Found, place: int, sample: BaseDataElement, number: int) -> None:
        """Take in one prediction of the image at a place of the batch."""
        kept, mean = found.get(place) or (sample, self._new_mean())
        upright = kept.metainfo.get('flip') and not sample.metainfo.get('flip')
        found[place] = (sample if upright else kept), mean
        try:
            probs = probabilities_in(sample)
            # A head is a softmax or not; what it says may be NaN of any image.
            check_finite(probs, 'its prediction')
            if number not in self._checked:
                check = check_range if len(probs) == 1 else check_probabilities
                check(probs, 'its prediction')
            mean.add(probs)
        except ValueError as error:
            image = sample.metainfo.get('img_path', 'an image')
            raise UserError(f'{self.names[number]}, of {image}: {error}') from error

    def _new_mean(self) -> PredictionMean:
        return PredictionMean(disagreement=self.disagreement, threshold=self.threshold)

    def _finished(self, found: Found) -> list[BaseDataElement]:
        """Return the data samples of a batch, with their means."""
        samples = []
        for sample, mean in (found[place] for place in sorted(found)):
            if sample.metainfo.get('flip') and 'gt_sem_seg' in sample:
                raise UserError(
                    'all views are flipped, so their labels may be too: add a view that is not '
                    'flipped to TestTimeAug'
                )
            put_probabilities(sample, mean.mean, threshold=self.threshold)
            if self.disagreement:
                put_disagreement(sample, mean.mutual_information, mean.predictions)
            if self.temperature is not None:
                logits = logits_in(sample) / self.temperature
                put_logits(sample, logits, threshold=self.threshold)
            samples.append(sample)
        return samples


def _built(member: nn.Module | dict, data_preprocessor: dict | None) -> nn.Module:
    if isinstance(member, nn.Module):
        return member
    member = deepcopy(member)
    if data_preprocessor is not None:
        member.setdefault('data_preprocessor', data_preprocessor)
    return MODELS.build(member)
