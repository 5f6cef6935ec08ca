"""The paper's text classifier: convolutions over word vectors under one global maximum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmcalib.checks import check_integer
from mmcalib.models.word_vectors import load_vectors, vector_size

KERNEL = 5
WINDOW = 5 * (KERNEL - 1) + 1  # words that one value under the global maximum sees
CHUNK = 16  # texts


@MODELS.register_module()
class GlobalPoolingCNN(BaseModule):
    """Global-pooling CNN over word ids, for mmpretrain's classifier and linear head.

    An embedding, three 1-D convolutions of 128 channels and kernel 5, each with ReLU, the first two
    followed by max-pooling of kernel 5 and stride 1, the maximum over all positions, and a hidden
    layer of 128 with ReLU. Nothing is padded on the way.

    Args:
        num_words: Size of the vocabulary, without the padding.
        vectors: File or files of word vectors, which are then frozen; see
            :func:`mmcalib.models.word_vectors.load_vectors`. Words without a vector get zeros. None
            for random vectors that are trained. The files are read at the start of a training, and
            every checkpoint contains the vectors.
        embed_dims: Dimensions per word; by default those of the vectors, or 100 without vectors. If
            set, a model can be built without the files, to test a checkpoint.
        channels: Width of the convolutions and of the hidden layer.
        init_cfg: See mmengine's ``BaseModule``. By default PyTorch's initialisation, as in the
            published code.

    Raises:
        FileNotFoundError: If a file of vectors is not there.
        TypeError: If an option is no integer, or the inputs are no ids.
        ValueError: If an option is below 1, or texts, vectors or a checkpoint do not fit.

    Source: the paper's appendix (global pooling on GloVe vectors), its published code for the
    layers. There the embedding is no part of the model.
    """

    def __init__(
        self,
        *,
        num_words: int = 2000,
        vectors: str | Sequence[str] | None = None,
        embed_dims: int | None = None,
        channels: int = 128,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        check_integer('num_words', num_words)
        check_integer('channels', channels)
        if embed_dims is None:
            embed_dims = 100 if vectors is None else vector_size(vectors)
        self.vectors = vectors
        # Row 0 is the padding: zeros, and without a gradient.
        self.embedding = nn.Embedding(num_words + 1, embed_dims, padding_idx=0)
        self.embedding.weight.requires_grad_(vectors is None)
        self.convs = nn.Sequential(
            nn.Conv1d(embed_dims, channels, KERNEL),
            nn.ReLU(),
            nn.MaxPool1d(KERNEL, stride=1),
            nn.Conv1d(channels, channels, KERNEL),
            nn.ReLU(),
            nn.MaxPool1d(KERNEL, stride=1),
            nn.Conv1d(channels, channels, KERNEL),
            nn.ReLU(),
        )
        self.hidden = nn.Sequential(nn.Linear(channels, channels), nn.ReLU())

    def set_words(self, words: Sequence[str]) -> None:
        """Give the ids 1, 2, … the vectors of these words."""
        rows, size = self.embedding.weight.shape
        if len(words) >= rows:
            raise ValueError(f'{len(words)} words are more than num_words={rows - 1} allows')
        if self.vectors is None:
            return
        found, missing = load_vectors(self.vectors, words)
        if found.shape[1] != size:
            raise ValueError(
                f'{self.vectors} has {found.shape[1]} numbers per word, but embed_dims={size}: '
                'leave embed_dims out'
            )
        with torch.no_grad():
            self.embedding.weight.zero_()
            self.embedding.weight[1 : len(words) + 1] = found.to(self.embedding.weight)
        print_log(
            f'{len(missing)} of {len(words)} words have no vector in {self.vectors} and get zeros'
            + (f': {", ".join(missing[:10])}{", …" * (len(missing) > 10)}' if missing else ''),
            logger='current',
        )

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Return the hidden layer, ``(N, channels)``, of ids ``(N, length)``, 0 for padding."""
        if ids.is_floating_point() or ids.ndim != 2:
            raise TypeError(
                f'GlobalPoolingCNN takes int64 ids (N, length), got {ids.dtype} '
                f'{tuple(ids.shape)}; the data preprocessor has to be a TextDataPreprocessor'
            )
        length = ids.shape[1]
        if length < WINDOW:
            raise ValueError(f'texts must have a length of at least {WINDOW}, got {length}')
        # The windows that see only padding are all alike, so one of them is enough for the maximum.
        # With texts of similar length together most of the padding goes, and its work with it.
        places = torch.arange(length, device=ids.device)
        first = torch.where(ids != 0, places, length).amin(dim=1)
        first, order = first.sort()
        starts = (first[::CHUNK] - WINDOW).clamp(min=0).tolist()
        chunks = zip(order.split(CHUNK), starts, strict=True)
        pooled = torch.cat([self.pooled(ids[rows, start:]) for rows, start in chunks])
        return (self.hidden(pooled[order.argsort()]),)

    def pooled(self, ids: Tensor) -> Tensor:
        """Return the maximum over all positions, ``(N, channels)``."""
        return self.convs(self.embedding(ids).transpose(1, 2)).amax(dim=2)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        # mmengine would only warn, and go on with random vectors.
        stored = state_dict.get(f'{prefix}embedding.weight')
        own = self.embedding.weight.shape
        if stored is not None and stored.shape != own:
            raise ValueError(
                f'the checkpoint has {stored.shape[0] - 1} words of {stored.shape[1]} numbers, but '
                f'num_words={own[0] - 1} and embed_dims={own[1]}: set both as it was trained'
            )
        super()._load_from_state_dict(state_dict, prefix, *args)
