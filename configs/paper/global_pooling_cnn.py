"""The paper's text classifier: convolutions over word vectors under one global maximum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

VECTORS_SOURCE = 'Unpack glove.6B.zip of https://nlp.stanford.edu/projects/glove/ there'
KERNEL = 5
WINDOW = 5 * (KERNEL - 1) + 1  # A value under the global maximum depends on 21 words.
CHUNK = 16  # Texts are computed 16 at a time.


@MODELS.register_module()
class GlobalPoolingCNN(BaseModule):
    """Global-pooling CNN over word ids, for mmpretrain's classifier and linear head.

    An embedding, three 1-D convolutions of 128 channels and kernel 5, each with ReLU, the first two
    followed by max-pooling of kernel 5 and stride 1, the maximum over all positions, and a hidden
    layer of 128 with ReLU. Nothing is padded on the way.

    Args:
        num_words: Size of the vocabulary, without the padding.
        vectors: Text file with a word and its `embed_dims` numbers per line, such as
            ``glove.6B.100d.txt``: the vectors, which are then frozen. None for random vectors that
            are trained. Only ``WordVectorsHook`` reads the file, before a training, and every
            checkpoint contains the vectors.
        embed_dims: Dimensions per word.
        channels: Width of the convolutions and of the hidden layer.
        init_cfg: See mmengine's ``BaseModule``. By default PyTorch's initialisation, as in the
            published code.

    Source: the paper's appendix (global pooling on GloVe vectors), its published code for the
    layers. There the embedding is no part of the model.
    """

    def __init__(
        self,
        *,
        num_words: int = 2000,
        vectors: str | None = None,
        embed_dims: int = 100,
        channels: int = 128,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.vectors = vectors
        # Row 0 is the padding: zeros, and without a gradient.
        self.embedding = nn.Embedding(num_words + 1, embed_dims, padding_idx=0)
        self.embedding.weight.requires_grad_(vectors is None)
        layers = []
        for width in (embed_dims, channels, channels):
            layers += [nn.Conv1d(width, channels, KERNEL), nn.ReLU(), nn.MaxPool1d(KERNEL, 1)]
        self.convs = nn.Sequential(*layers[:-1])
        self.hidden = nn.Sequential(nn.Linear(channels, channels), nn.ReLU())

    def set_words(self, words: Sequence[str]) -> None:
        """Give the ids 1, 2, … the vectors of these words, zeros to those that the file lacks.

        Raises:
            FileNotFoundError: If there is no such file.
            IndexError: If there are more words than the model has room for.
            RuntimeError: If the vectors have another length than the model's.
        """
        if self.vectors is None:
            return
        table = torch.zeros_like(self.embedding.weight)
        path = Path(self.vectors).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f'there is no file {path.absolute()}. {VECTORS_SOURCE}; or set --cfg-options '
                'model.backbone.vectors=…'
            )
        missing_ids = {word: word_id for word_id, word in enumerate(words, 1)}
        with path.open(encoding='utf-8') as file:
            for line in file:
                word, *numbers = line.split()
                if word in missing_ids:
                    vector = [float(number) for number in numbers]
                    table[missing_ids.pop(word)] = torch.tensor(vector, device='cpu')
        self.embedding.weight.data.copy_(table)
        print_log(
            f'{len(missing_ids)} of {len(words)} words have no vector in {path}', logger='current'
        )

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        """Return the hidden layer, ``(N, channels)``, of ids ``(N, length)``, 0 for padding.

        mmpretrain's data preprocessor makes floats of the ids.
        """
        ids = ids.long()
        # All windows of padding alone are equal, so one of them is enough for the maximum. Texts of
        # similar length are computed together, without most of their padding.
        first_word, order = (ids != 0).int().argmax(dim=1).sort()
        pooled = []
        for start, texts in zip(first_word[::CHUNK].tolist(), order.split(CHUNK), strict=True):
            vectors = self.embedding(ids[texts, max(start - WINDOW, 0) :])
            pooled.append(self.convs(vectors.transpose(1, 2)).amax(dim=2))
        return (self.hidden(torch.cat(pooled)[order.argsort()]),)
