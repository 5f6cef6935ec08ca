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
from mmcalib.openmmlab.ensembles.batch_views import repeat_image, split_views
from mmcalib.openmmlab.ensembles.mc_dropout import content_seed, dropout_layers, random_dropout
from mmcalib.openmmlab.heads import check_softmax, classes_of_head, find_head
from mmcalib.openmmlab.sample_writing import (
    logits_in,
    probabilities_in,
    put_disagreement,
    put_logits,
    put_probabilities,
)
from mmcalib.options import check_integer, check_number
from mmcalib.predictions.average import PredictionMean
from mmcalib.tensors import check_finite, check_probabilities, check_range

# The data sample to return and the mean so far, by the index of the image in its batch.
Means = dict[int, tuple[BaseDataElement, PredictionMean]]


@MODELS.register_module()
class MeanProbabilityModel(BaseTTAModel):
    r"""Model of either toolbox that predicts the mean probabilities of N predictions.

    .. math:: \bar p = \frac1N \sum_{i=1}^N \mathrm{softmax}(z_i)

    The predictions are those of each member, of each view of an image that a ``TestTimeAug`` in the
    pipeline makes, and of each pass with random dropout. The data samples are the toolbox's own:
    mmseg's ``seg_logits`` are :math:`\log \bar p` and ``pred_sem_seg`` is its argmax (of a binary
    head, as there, the mean probability and its threshold); mmpretrain's ``pred_score`` is
    :math:`\bar p`. So all metrics and hooks take them. Labels are those of the first view that is
    not flipped. Only two predictions and sums are in memory, however many predictions there are.

    Its checkpoints are the members', see :func:`mmcalib.runs.runner.load_weights`.

    Args:
        module: First member, or its config.
        others: Other members. Each prepares its inputs by its own ``data_preprocessor``.
        data_preprocessor: Config for members whose configs have none.
        mc_dropout: Number of passes with random dropout, with all other layers in evaluation mode;
            0 for none. They depend only on the seed and the image, not on its batch or process.
            Source: Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.
        passes_at_once: Number of passes computed as one batch. It affects the random draws.
        seed: Seed of the dropout.
        temperature: Divisor of :math:`\log \bar p` (of a binary head, of the logit of the mean)
            before a softmax; None for 1.
        disagreement: Whether data samples get ``mutual_information``, see
            :class:`~mmcalib.predictions.average.PredictionMean`: a number of a
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
        members = [_build_member(member, data_preprocessor) for member in (module, *others)]
        super().__init__(members[0])
        self.others = nn.ModuleList(members[1:])
        self.mc_dropout = check_integer('mc_dropout', mc_dropout, least=0)
        self.passes_at_once = check_integer('passes_at_once', passes_at_once)
        self.seed = check_integer('seed', seed, least=0)
        self.temperature = temperature
        if temperature is not None:
            check_number('temperature', temperature, least=1e-6)
        self.disagreement = disagreement
        self.names = [f'member {index + 1}' for index in range(len(members))]
        self._checked: set[int] = set()
        for index, member in enumerate(members):
            self._check_member(index, member)

    def _check_member(self, index: int, member: nn.Module) -> None:
        """Raise a UserError for a member whose predictions cannot be averaged with the others'."""
        name = self.names[index]
        check_softmax(member, name)
        num_classes = classes_of_head(member)
        first_num_classes = classes_of_head(self.module)
        if None not in (num_classes, first_num_classes) and num_classes != first_num_classes:
            raise UserError(
                f'{name} has {num_classes} classes, but member 1 has {first_num_classes}: they '
                'cannot be averaged'
            )
        if self.mc_dropout and not dropout_layers(member):
            raise UserError(
                f'{name} has no dropout layer with a probability above 0, so all its passes would '
                'be equal: leave out mc_dropout, or use the config that it was trained with'
            )

    @property
    def members(self) -> list[nn.Module]:
        """The models whose predictions are averaged."""
        return [self.module, *self.others]

    @property
    def threshold(self) -> float:
        """The probability above which a binary head of mmseg predicts its class."""
        return getattr(find_head(self.module), 'threshold', 0.5)

    def val_step(self, data: Mapping) -> list[BaseDataElement]:
        """Predict as in a test."""
        return self.test_step(data)

    def test_step(self, data: Mapping) -> list[BaseDataElement]:
        """Return a data sample with the mean for each image of a batch, with or without views."""
        means: Means = {}
        views = split_views(data)
        for member_index in range(len(self.members)):
            for view in views:
                try:
                    for image_index, sample in self._predictions(member_index, view):
                        self._add(means, image_index, sample, member_index)
                except AssertionError as error:  # A U-Net may not be able to halve a size.
                    image = view['data_samples'][0].metainfo.get('img_path', 'an image')
                    hint = '; --tta-scales chooses the sizes of views' if len(views) > 1 else ''
                    raise UserError(
                        f'{self.names[member_index]}, of {image}: {str(error) or repr(error)}{hint}'
                    ) from error
            self._checked.add(member_index)
        return self._put_means(means)

    def merge_preds(
        self, data_samples_list: Sequence[Sequence[BaseDataElement]]
    ) -> list[BaseDataElement]:
        """Return a data sample with the mean for each image's predictions."""
        means: Means = {}
        for image_index, samples in enumerate(data_samples_list):
            for sample in samples:
                self._add(means, image_index, sample, 0)
        return self._put_means(means)

    def _predictions(
        self, member_index: int, view: Mapping
    ) -> Iterator[tuple[int, BaseDataElement]]:
        """Yield a member's predictions of a view, each with the index of its image."""
        member = self.members[member_index]
        if not self.mc_dropout:
            yield from enumerate(member.test_step(view))
            return
        device = torch.device(self.data_preprocessor.device)
        for image_index, image in enumerate(view['inputs']):
            seed = content_seed(image, self.seed, member_index)
            with random_dropout(member, seed, device):
                for start in range(0, self.mc_dropout, self.passes_at_once):
                    count = min(self.passes_at_once, self.mc_dropout - start)
                    for sample in member.test_step(repeat_image(view, image_index, count)):
                        yield image_index, sample

    def _add(
        self, means: Means, image_index: int, sample: BaseDataElement, member_index: int
    ) -> None:
        """Add one prediction of an image to its mean."""
        if image_index in means:
            first_sample, mean = means[image_index]
            is_first_upright = first_sample.metainfo.get('flip') and not sample.metainfo.get('flip')
            if is_first_upright:
                means[image_index] = (sample, mean)
        else:
            mean = PredictionMean(disagreement=self.disagreement, threshold=self.threshold)
            means[image_index] = (sample, mean)
        try:
            probs = probabilities_in(sample)
            # Any prediction may be NaN, but a head is a softmax always or never.
            check_finite(probs, 'its prediction')
            if member_index not in self._checked:
                if len(probs) == 1:
                    check_range(probs, 'its prediction')
                else:
                    check_probabilities(probs, 'its prediction')
            mean.add(probs)
        except ValueError as error:
            image = sample.metainfo.get('img_path', 'an image')
            raise UserError(f'{self.names[member_index]}, of {image}: {error}') from error

    def _put_means(self, means: Means) -> list[BaseDataElement]:
        """Return the data samples of a batch, with the means for their scores."""
        samples = []
        for image_index in sorted(means):
            sample, mean = means[image_index]
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


def _build_member(member: nn.Module | dict, data_preprocessor: dict | None) -> nn.Module:
    """Return a member from its config, or as it is."""
    if isinstance(member, nn.Module):
        return member
    member = deepcopy(member)
    if data_preprocessor is not None:
        member.setdefault('data_preprocessor', data_preprocessor)
    return MODELS.build(member)
