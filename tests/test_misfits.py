"""The table of remedies: each row is reached by an example, and what it advises is accepted."""

import itertools
import re

import pytest
import torch
from mmengine.dataset import Compose
from mmengine.structures import BaseDataElement
from torch import nn

import mmcalib
from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.metrics import StreamingMetrics, measure
from mmcalib.misfits import TABLE, always
from mmcalib.openmmlab.hooks.broken_samples_hook import NamingPipeline
from mmcalib.openmmlab.samples import read_samples
from mmcalib.posthoc import TemperatureScaler

torch.manual_seed(0)
ROWS = torch.randn(12, 3)
LABELS = torch.arange(12) % 3
ROUNDED = 0.985 * ROWS.softmax(1)
MAPS = torch.randn(2, 3, 8, 9)
MASKS = torch.randint(3, (2, 8, 9))
ONE_HOT = nn.functional.one_hot(MASKS, 3)
REGIONS = ONE_HOT.movedim(-1, 1).clone()
REGIONS[:, 1] |= REGIONS[:, 2]
SQUARE = torch.randn(4, 6, 6)
SQUARE_LABELS = SQUARE[:, 0].argsort()
SOME_IGNORED = LABELS.masked_fill(LABELS == 0, 255)
ONE_HOT_LABELS = nn.functional.one_hot(LABELS, 3)
SMALL_MASKS = MASKS[:, ::2, ::2]
STRANGE_MASK = MASKS[0].masked_fill(MASKS[0] == 0, 77)[None]
MAPS_LAST = MAPS.movedim(1, -1)
SEVERAL = (ROWS > 0).long()
TOKENS = torch.randint(5, (3, 7))
TOKEN_LOGITS = torch.randn(3, 7, 5)
ZEROS = ROWS.softmax(1).masked_fill(torch.arange(3) == 2, 0)
SHARES = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.25, 0.25]])


def stream(logits, labels, **options):
    metrics = StreamingMetrics(**options)
    metrics.update(logits, labels)
    metrics.compute()


def fit(logits, labels, **options):
    TemperatureScaler().fit(logits, labels, **options)


def load(outputs, labels, **options):
    mmcalib.evaluate(nn.Identity(), [(outputs, labels)], **options)


def measure_softmax(logits, labels, **options):
    measure(logits.softmax(1), labels, **options)


def loss(logits, target, **options):
    MarginLabelSmoothingLoss(**options)(logits, target)


def rows_of_votes(logits, shares):
    """Return one row for each vote, as the remedy for shares says."""
    votes = (4 * shares).round().long()
    i = torch.arange(votes.numel()).repeat_interleave(votes.flatten())
    return logits[i // 3], i % 3


class CausalModel(nn.Module):
    def forward(self, input_ids):
        return {'logits': TOKEN_LOGITS[: len(input_ids)]}


def classify(pred_score, gt_label, **options):
    read_samples([{'pred_score': pred_score, 'gt_label': gt_label}], ['a.png'], **options)


def segment(seg_logits, gt_sem_seg, **options):
    sample = {'seg_logits': seg_logits, 'gt_sem_seg': gt_sem_seg}
    sample['pred_sem_seg'] = seg_logits.argmax(0, keepdim=True)
    read_samples([sample], ['a.png'], **options)


def pack(label, num_classes):
    """Load a sample with a label, as a training of a model with some classes does."""
    sample = {'data_samples': BaseDataElement(gt_label=torch.tensor([label]))}
    NamingPipeline(Compose([]), num_classes, [255])(sample)


# A refused call, and the same as the sentence advises, by the key of the row.
EXAMPLES = {
    'one label': (lambda: stream(ROWS, LABELS[0]), lambda: stream(ROWS, LABELS)),
    'one map': (lambda: stream(MAPS[0], MASKS[0]), lambda: stream(MAPS[0][None], MASKS[0][None])),
    'transposed': (lambda: stream(ROWS.T, LABELS), lambda: stream(ROWS.T.T, LABELS)),
    'other length': (lambda: load(ROWS, LABELS[:7]), lambda: load(ROWS[:7], LABELS[:7])),
    'one-hot, classes last': (
        lambda: stream(MAPS, ONE_HOT),
        lambda: stream(MAPS, ONE_HOT.argmax(3)),
    ),
    'one-hot': (
        lambda: measure_softmax(MAPS, ONE_HOT.movedim(-1, 1)),
        lambda: measure_softmax(MAPS, ONE_HOT.movedim(-1, 1).argmax(1)),
    ),
    'other number of labels': (
        lambda: load(ROWS, torch.ones(12, 2).long()),
        lambda: load(ROWS, torch.ones(12, 3).long()),
    ),
    'maps of one class or of several': (
        lambda: stream(MAPS, REGIONS),
        lambda: [
            stream(MAPS[:, None], REGIONS),
            stream(MAPS[:, 1:2], REGIONS[:, 1]),
        ],
    ),
    'several classes': (
        lambda: load(MAPS, REGIONS[:, 1:]),
        lambda: load(MAPS[:, 1:2], REGIONS[:, 1:][:, 1]),
    ),
    'classes last, loader': (
        lambda: load(MAPS_LAST, MASKS),
        lambda: load(MAPS_LAST, MASKS, logits=lambda output: output.movedim(-1, 1)),
    ),
    'classes last': (
        lambda: stream(MAPS_LAST, MASKS),
        lambda: stream(MAPS_LAST.movedim(-1, 1), MASKS),
    ),
    'other size, loader': (
        lambda: load(MAPS, SMALL_MASKS),
        lambda: load(
            MAPS,
            SMALL_MASKS,
            logits=lambda output: nn.functional.interpolate(output, (4, 5)),
        ),
    ),
    'other size': (
        lambda: stream(MAPS, SMALL_MASKS),
        lambda: stream(nn.functional.interpolate(MAPS, (4, 5)), SMALL_MASKS),
    ),
    'other shape': (lambda: fit(MAPS, LABELS[:2]), lambda: fit(ROWS[:2], LABELS[:2])),
    'unknown axis, loader': (
        lambda: load(SQUARE, SQUARE_LABELS),
        lambda: [
            load(SQUARE, SQUARE_LABELS, logits=lambda output: output.movedim(-1, 1)),
            load(SQUARE, SQUARE_LABELS, logits=lambda output: output),
        ],
    ),
    'unknown axis': (
        lambda: stream(SQUARE, SQUARE_LABELS),
        lambda: [
            stream(SQUARE[..., None], SQUARE_LABELS[..., None]),
            stream(SQUARE.movedim(-1, 1)[..., None], SQUARE_LABELS[..., None]),
            loss(SQUARE[..., None], SQUARE_LABELS[..., None]),
        ],
    ),
    'several models, loader': (
        lambda: mmcalib.evaluate(nn.Identity(), [(ROWS, LABELS), (ROWS[:, :2], LABELS % 2)]),
        lambda: [load(ROWS, LABELS), load(ROWS[:, :2], LABELS % 2)],
    ),
    'several models': (
        lambda: two_updates(ROWS, LABELS, MAPS, MASKS),
        lambda: [stream(ROWS, LABELS), stream(MAPS, MASKS)],
    ),
    'shares': (
        lambda: measure_softmax(ROWS[:2], SHARES),
        lambda: measure_softmax(*rows_of_votes(ROWS[:2], SHARES)),
    ),
    'fractions': (lambda: stream(ROWS, LABELS + 0.5), lambda: stream(ROWS, LABELS.float())),
    'numbered from one': (
        lambda: measure_softmax(ROWS, LABELS + 1),
        lambda: [
            measure_softmax(ROWS, LABELS + 1 - 1),
            measure_softmax(ROWS, LABELS + 1, ignore_index=3),
        ],
    ),
    'ignored by no loss': (
        lambda: loss(ROWS, SOME_IGNORED),
        lambda: loss(ROWS, SOME_IGNORED, ignore_index=255),
    ),
    'another one is ignored': (
        lambda: fit(ROWS, SOME_IGNORED, ignore_index=-100),
        lambda: fit(ROWS, SOME_IGNORED, ignore_index=255),
    ),
    'none is ignored': (
        lambda: fit(ROWS, SOME_IGNORED),
        lambda: fit(ROWS, SOME_IGNORED, ignore_index=255),
    ),
    'masked classes': (
        lambda: stream(ROWS.masked_fill(LABELS[:, None] == 0, -torch.inf), LABELS),
        lambda: stream(ROWS[LABELS > 0], LABELS[LABELS > 0]),
    ),
    'diverged': (lambda: stream(ROWS * torch.nan, LABELS), lambda: stream(ROWS, LABELS)),
    'masked labels': (
        lambda: stream(ZEROS.log(), LABELS),
        lambda: stream(ZEROS.clamp(min=ZEROS[ZEROS > 0].min() / 2).log(), LABELS),
    ),
    'no prediction': (
        lambda: measure(ROWS.softmax(1).masked_fill(LABELS[:, None] == 0, torch.nan), LABELS),
        lambda: measure(ROWS.softmax(1)[LABELS > 0], LABELS[LABELS > 0]),
    ),
    'logits or percentages': (
        lambda: measure(100 * ROWS.softmax(1), LABELS),
        lambda: [measure(100 * ROWS.softmax(1) / 100, LABELS), measure(ROWS.softmax(1), LABELS)],
    ),
    'no softmax, or classes last': (
        lambda: measure(SQUARE.softmax(-1), SQUARE_LABELS),
        lambda: measure(SQUARE.softmax(-1).movedim(-1, 1), SQUARE_LABELS),
    ),
    'rounded': (
        lambda: measure(ROUNDED, LABELS),
        lambda: measure(ROUNDED / ROUNDED.sum(1, keepdim=True), LABELS),
    ),
    'no softmax': (
        lambda: measure(ROWS.sigmoid(), LABELS),
        lambda: measure(ROWS.softmax(1), LABELS),
    ),
    'probabilities': (
        lambda: load(100 * ROWS.softmax(1), LABELS),
        lambda: load(100 * ROWS.softmax(1), LABELS, logits=lambda p: (p / 100).log()),
    ),
    'sigmoid, loader': (
        lambda: load(ROWS.sigmoid(), SEVERAL),
        lambda: load(ROWS.sigmoid(), SEVERAL, logits=lambda p: torch.logit(p, eps=1e-7)),
    ),
    'sigmoid': (
        lambda: stream(ROWS.sigmoid(), SEVERAL),
        lambda: stream(torch.logit(ROWS.sigmoid(), eps=1e-7), SEVERAL),
    ),
    'softmax of sigmoids': (
        lambda: stream(ROWS.sigmoid(), LABELS),
        lambda: stream(ROWS, LABELS),
    ),
    'one-hot batches': (
        lambda: stream(ROWS, ONE_HOT_LABELS),
        lambda: stream(ROWS, ONE_HOT_LABELS.argmax(1)),
    ),
    'tokens': (
        lambda: mmcalib.evaluate(
            CausalModel(),
            [{'input_ids': TOKENS, 'labels': TOKENS}],
            logits=lambda output: output['logits'].movedim(-1, 1),
        ),
        lambda: mmcalib.evaluate(
            CausalModel(),
            [{'input_ids': TOKENS, 'labels': TOKENS}],
            unpack=lambda b: ({'input_ids': b['input_ids']}, b['labels'][:, 1:]),
            logits=lambda output: output['logits'][:, :-1].movedim(-1, 1),
        ),
    ),
    'target of floats': (lambda: loss(ROWS, LABELS.float()), lambda: loss(ROWS, LABELS)),
    'target with an axis of classes': (
        lambda: loss(MAPS, MASKS[:, None]),
        lambda: loss(MAPS, MASKS[:, None][:, 0].long()),
    ),
    'one-hot target': (
        lambda: loss(ROWS, ONE_HOT_LABELS),
        lambda: loss(ROWS, ONE_HOT_LABELS.argmax(dim=1)),
    ),
    'classes of pred last': (
        lambda: loss(MAPS_LAST, MASKS),
        lambda: loss(MAPS_LAST.movedim(-1, 1), MASKS),
    ),
    'binary head': (lambda: loss(ROWS[:, :1], LABELS), lambda: loss(ROWS[:, :2], LABELS % 2)),
    'classes of a data set': (
        lambda: segment(MAPS[0], STRANGE_MASK),
        lambda: segment(MAPS[0], STRANGE_MASK, ood_index=77),
    ),
    'scores of sigmoids': (
        lambda: classify(ROWS[0].sigmoid(), LABELS[:1]),
        lambda: classify(ROWS[0].sigmoid(), LABELS[:1], several_labels=True),
    ),
    'several labels of a sample': (
        lambda: classify(ROWS[0].softmax(0), LABELS[:2]),
        lambda: classify(ROWS[0].sigmoid(), LABELS[:2], several_labels=True),
    ),
    'size of a mask': (
        lambda: segment(MAPS[0], MASKS[:1, ::2]),
        lambda: segment(MAPS[0], MASKS[:1]),
    ),
    'classes of a file': (lambda: pack(7, 3), lambda: [pack(7, 8), pack(255, 3)]),
}


def two_updates(logits, labels, other_logits, other_labels):
    metrics = StreamingMetrics()
    metrics.update(logits, labels)
    metrics.update(other_logits, other_labels)


@pytest.mark.filterwarnings('error')
@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize('row', itertools.chain(*TABLE.values()), ids=lambda row: row.key)
def test_row_example_reaches_it_and_its_advice_is_accepted(row):
    refused, mended = EXAMPLES[row.key]
    with pytest.raises((ValueError, UserWarning)) as raised:
        refused()
    texts = re.split(r'\{[^{}]*\}', row.remedy.replace('{{', '').replace('}}', ''))
    assert re.search('.*'.join(map(re.escape, texts)), str(raised.value))
    mended()


def test_table_keys_are_unique_and_no_row_is_shadowed():
    keys = [row.key for row in itertools.chain(*TABLE.values())]
    assert sorted(keys) == sorted(EXAMPLES)
    for rows in TABLE.values():
        for row in rows[:-1]:
            assert row.door or row.holds is not always
