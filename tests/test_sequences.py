"""Models of sequences: classes are the last axis, and language models predict what follows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import mmcalib
from mmcalib.metrics import measure
from mmcalib.posthoc import TemperatureScaler

WORDS = 12


class LanguageModel(nn.Module):
    """A causal model: its logits (N, L, K) at a position predict the next token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.table.weight  # Tied weights make a token predict itself.

    def forward(self, input_ids, attention_mask=None, labels=None):
        return SimpleNamespace(logits=4 * self.head(self.table(input_ids)))


def classes_second(output):
    return output.logits.movedim(-1, 1)


def next_tokens(output):
    return output.logits[:, :-1].movedim(-1, 1)


def token_batches(prompt=0):
    """Return batches of token ids, with labels that copy them as transformers' collator does."""
    torch.manual_seed(1)
    batches = []
    for _ in range(3):
        ids = torch.randint(WORDS, (5, 7))
        labels = ids.clone()
        labels[:, 5:] = -100  # padding
        labels[:, :prompt] = -100
        mask = torch.ones_like(ids)
        batches.append({'input_ids': ids, 'attention_mask': mask, 'labels': labels})
    return batches


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
@pytest.mark.parametrize('prompt', [0, 3])
def test_labels_that_copy_input_ids_are_refused(function, prompt):
    with pytest.raises(ValueError, match=r'input_ids.*\[:, 1:\]') as error:
        function(
            LanguageModel(), token_batches(prompt=prompt), logits=classes_second, ignore_index=-100
        )
    assert '\n' not in str(error.value)
    pairs = [(batch['input_ids'], batch['labels']) for batch in token_batches(prompt=prompt)]
    with pytest.raises(ValueError, match=r'\[:, 1:\]'):
        function(LanguageModel(), pairs, logits=classes_second, ignore_index=-100)


def test_few_labels_that_copy_input_ids_are_refused_at_the_end():
    batches = [{name: value[:1, 2:] for name, value in b.items()} for b in token_batches()[:2]]
    with pytest.raises(ValueError, match=r'input_ids.*\[:, 1:\]'):
        mmcalib.evaluate(LanguageModel(), batches, logits=classes_second, ignore_index=-100)


def test_labels_that_are_shifted_measure_the_next_tokens():
    batches = token_batches()
    shifted = [(batch, batch['labels'][:, 1:]) for batch in batches]
    actual = mmcalib.evaluate(
        LanguageModel(), shifted, ['NLL', 'accuracy'], logits=next_tokens, ignore_index=-100
    )
    ids = torch.cat([batch['input_ids'] for batch in batches])
    labels = torch.cat([batch['labels'] for batch in batches])
    logits = LanguageModel()(ids).logits.detach()
    losses = []
    correct = []
    for text in range(len(ids)):
        for position in range(ids.shape[1] - 1):
            label = int(labels[text, position + 1])
            if label != -100:
                losses.append(-float(logits[text, position].log_softmax(0)[label]))
                correct.append(int(logits[text, position].argmax()) == label)
    assert actual['NLL'] == pytest.approx(np.mean(losses), abs=1e-5)
    assert actual['accuracy'] == pytest.approx(100 * np.mean(correct))


def test_labels_that_equal_some_tokens_are_read():
    few, masked, _ = token_batches()
    few['labels'][1:] = -100
    few['labels'][:, 1:] = -100
    masked['input_ids'] = torch.where(masked['labels'] % 3 == 0, 0, masked['input_ids'])
    nll = mmcalib.evaluate(
        LanguageModel(), [few, masked], 'NLL', logits=classes_second, ignore_index=-100
    )
    assert nll > 0


def square_predictions():
    """Return logits (N, L, K) of L = K that are right, and their labels (N, L)."""
    torch.manual_seed(0)
    labels = torch.randint(6, (4, 6))
    noise = torch.randn(4, 6, 6)
    return 4 * nn.functional.one_hot(labels, 6) + noise, labels


def test_axes_of_one_size_are_read_as_they_are_named():
    logits, labels = square_predictions()
    accuracy = 100 * float((logits.argmax(-1) == labels).float().mean())
    moved = mmcalib.evaluate(
        nn.Identity(), [(logits, labels)], 'accuracy', logits=lambda x: x.movedim(-1, 1)
    )
    assert moved == pytest.approx(accuracy)
    second = [(logits.movedim(-1, 1), labels)]
    named = mmcalib.evaluate(nn.Identity(), second, 'accuracy', logits=lambda x: x)
    assert named == pytest.approx(accuracy)
    # A batch of other sizes has shown the axes.
    longer = (torch.randn(2, 6, 9), torch.zeros(2, 9, dtype=torch.long))
    assert mmcalib.evaluate(nn.Identity(), [longer, *second], 'accuracy') > 0


def test_scaler_axes_of_one_size_are_not_guessed():
    logits, labels = square_predictions()
    with pytest.raises(ValueError, match=r'movedim\(-1, 1\)\[\.\.\., None\]'):
        TemperatureScaler().fit(logits, labels)


def test_measure_axes_of_one_size_are_told_by_their_sums():
    logits, labels = square_predictions()
    with pytest.raises(ValueError, match=r'movedim\(-1, 1\)'):
        measure(logits.softmax(-1), labels)
    accuracy = 100 * float((logits.argmax(-1) == labels).float().mean())
    actual = measure(logits.softmax(-1).movedim(-1, 1), labels, 'accuracy')
    assert actual == pytest.approx(accuracy)
