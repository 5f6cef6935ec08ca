"""From texts to the ids of their words, by a vocabulary that is part of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS

from mmcalib.checks import check_integer

# What Keras's Tokenizer takes for gaps; it leaves apostrophes in the words.
GAPS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
_TO_SPACES = str.maketrans(GAPS, ' ' * len(GAPS))
MAX_CACHED = 50_000  # texts, about 3 kB each


def tokenize(text: str) -> list[str]:
    """Return the words of a text in lower case, split as Keras's Tokenizer does by default.

    Any other white space splits words too.
    """
    return text.lower().translate(_TO_SPACES).split()


def most_frequent(texts: Iterable[str], num_words: int) -> list[str]:
    """Return the most frequent words, the most frequent first, those of equal count as they come.

    Args:
        texts: Any number of texts.
        num_words: The most words to return.
    """
    counts = Counter()
    for text in texts:
        counts.update(tokenize(text))
    return [word for word, _ in counts.most_common(num_words)]


@MODELS.register_module()
class TextDataPreprocessor(BaseDataPreprocessor):
    """Turn texts into the ids of their words: int64 ``(N, length)``, where 0 is padding.

    Word i of the vocabulary, the most frequent first, has id i + 1. Other words are left out, the
    last `length` words are kept, and shorter texts are padded in front, as Keras's Tokenizer and
    ``pad_sequences`` do by default. A text that comes again, as in every epoch, is not split again.

    The vocabulary is a buffer, so every checkpoint holds it and a model tested later uses that of
    its training: no file and no training data are needed. :class:`mmcalib.hooks.VocabularyHook`
    fits it before a training.

    Args:
        num_words: Largest size of the vocabulary.
        length: Words per text.
        batch_augments: None; mmpretrain's classifiers pass their ``train_cfg`` here.
        non_blocking: Whether copies to the device are asynchronous.

    Raises:
        TypeError: If an option is no integer; for a batch, if its inputs are no texts.
        ValueError: If an option is out of its range; for a batch, if there is no vocabulary yet.

    Source: the paper's published code, which fits the vocabulary on all texts, those of the test
    split too, where this is fitted on the training split alone; and whose ``num_words=2000`` are
    1,999 words and the padding, where this has 2,000 words besides it.
    """

    def __init__(
        self,
        *,
        num_words: int = 2000,
        length: int = 1000,
        batch_augments: None = None,
        non_blocking: bool = False,
    ) -> None:
        if batch_augments is not None:
            raise ValueError(f'texts cannot be mixed: leave out train_cfg={batch_augments!r}')
        super().__init__(non_blocking=non_blocking)
        self.num_words = check_integer('num_words', num_words)
        self.length = check_integer('length', length)
        # UTF-8, since mmengine's checkpoints leave out all state but tensors.
        self.register_buffer('vocabulary', torch.empty(0, dtype=torch.uint8))
        self._forget()

    @property
    def words(self) -> list[str]:
        """The vocabulary, the most frequent word first; empty if there is none yet."""
        return bytes(self.vocabulary.tolist()).decode().split()

    def set_words(self, words: Sequence[str]) -> None:
        """Replace the vocabulary."""
        if not 0 < len(words) <= self.num_words:
            raise ValueError(f'the vocabulary needs 1 to {self.num_words} words, got {len(words)}')
        encoded = np.frombuffer('\n'.join(words).encode(), dtype=np.uint8)
        self.vocabulary = torch.tensor(encoded, device=self.device)
        self._forget()

    def forward(self, data: dict, training: bool = False) -> dict:
        """Return a batch with ids for ``inputs``, on the device of the model.

        Args:
            data: ``inputs``, a list of texts; ``data_samples`` and the like are kept.
            training: Makes no difference.
        """
        texts = data['inputs']
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(
                'TextDataPreprocessor takes a list of texts as inputs, got '
                f'{type(texts).__name__}; does the pipeline end in PackText?'
            )
        if not self._ids:
            self._ids = {word: index + 1 for index, word in enumerate(self.words)}
        if not self._ids:
            raise ValueError(
                'the model has no vocabulary: load a checkpoint, or train it with '
                "custom_hooks=[dict(type='VocabularyHook')]"
            )
        ids = np.zeros((len(texts), self.length), dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            known = self._encode(text)
            row[self.length - len(known) :] = known
        return self.cast_data({**data, 'inputs': torch.from_numpy(ids)})

    def _encode(self, text: str) -> np.ndarray:
        """Return the ids of the last known words of a text, at most `length` of them."""
        known = self._encoded.get(text)
        if known is None:
            ids = [self._ids[word] for word in tokenize(text) if word in self._ids]
            known = np.array(ids[-self.length :], dtype=np.int32)
            if len(self._encoded) < MAX_CACHED:
                self._encoded[text] = known
        return known

    def _forget(self) -> None:
        """Drop what was derived from another vocabulary."""
        self._ids: dict[str, int] = {}
        self._encoded: dict[str, np.ndarray] = {}

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        stored = state_dict.get(f'{prefix}vocabulary')
        if stored is not None:
            # Its size is that of the words, which a new model cannot know.
            self.vocabulary = torch.empty_like(stored, device=self.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._forget()
