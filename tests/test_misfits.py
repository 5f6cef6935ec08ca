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
from mmcalib.openmmlab.samples import read_sample
from mmcalib.posthoc import TemperatureScaler

torch.manual_seed(0)
ROWS = torch.randn(12, 3)
LABELS = torch.arange(12) % 3
PROBS = ROWS.softmax(1)
SIGMOIDS = ROWS.sigmoid()
ROUNDED = 0.985 * PROBS
IGNORING = dict(ignore_index=255)
MAPS = torch.randn(2, 3, 8, 9)
MASKS = torch.randint(3, (2, 8, 9))
ONE_HOT = nn.functional.one_hot(MASKS, 3)
ONE_HOT_SECOND = ONE_HOT.movedim(-1, 1)
REGIONS = ONE_HOT_SECOND.clone()
REGIONS[:, 1] |= REGIONS[:, 2]
SQUARE = torch.randn(4, 6, 6)
SQUARE_LABELS = SQUARE[:, 0].argsort()
SQUARE_COLUMN = SQUARE_LABELS[..., None]
SOME_IGNORED = LABELS.masked_fill(LABELS == 0, 255)
ONE_HOT_LABELS = nn.functional.one_hot(LABELS, 3)
SMALL_MASKS = MASKS[:, ::2, ::2]
STRANGE_MASK = MASKS[0].masked_fill(MASKS[0] == 0, 77)[None]
MAPS_LAST = MAPS.movedim(1, -1)
SEVERAL = (ROWS > 0).long()
TOKENS = torch.randint(5, (3, 7))
TOKEN_LOGITS = torch.randn(3, 7, 5)
ZEROS = PROBS.masked_fill(torch.arange(3) == 2, 0)
TOKEN_BATCHES = [{'input_ids': TOKENS, 'labels': TOKENS}]
SHARES = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.25, 0.25]])


def stream(*arrays, **options):
    """Measure logits and labels, and perhaps further ones."""
    metrics = StreamingMetrics(**options)
    for logits, labels in zip(arrays[::2], arrays[1::2], strict=True):
        metrics.update(logits, labels)
    metrics.compute()


def fit(logits, labels, **options):
    TemperatureScaler().fit(logits, labels, **options)


def load(*arrays, **options):
    batches = zip(arrays[::2], arrays[1::2], strict=True)
    mmcalib.evaluate(nn.Identity(), list(batches), **options)


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
    read_sample({'pred_score': pred_score, 'gt_label': gt_label}, 'a.png', **options)


def segment(seg_logits, gt_sem_seg, **options):
    sample = {'seg_logits': seg_logits, 'gt_sem_seg': gt_sem_seg}
    sample['pred_sem_seg'] = seg_logits.argmax(0, keepdim=True)
    read_sample(sample, 'a.png', **options)


def pack(label, num_classes):
    """Load a sample with a label, as a training of a model with some classes does."""
    sample = {'data_samples': BaseDataElement(gt_label=torch.tensor([label]))}
    NamingPipeline(Compose([]), num_classes, [255])(sample)


# By the key of the row: a door, what it refuses, and the same as the sentence advises.
EXAMPLES = {
    'one label': (stream, [ROWS, LABELS[0]], [ROWS, LABELS]),
    'one map': (stream, [MAPS[0], MASKS[0]], [MAPS[0][None], MASKS[0][None]]),
    'transposed': (stream, [ROWS.T, LABELS], [ROWS.T.T, LABELS]),
    'other length': (load, [ROWS, LABELS[:7]], [ROWS[:7], LABELS[:7]]),
    'one-hot, classes last': (stream, [MAPS, ONE_HOT], [MAPS, ONE_HOT.argmax(3)]),
    'one-hot': (
        measure_softmax,
        [MAPS, ONE_HOT_SECOND],
        [MAPS, ONE_HOT_SECOND.argmax(1)],
    ),
    'other number of labels': (
        load,
        [ROWS, torch.ones(12, 2).long()],
        [ROWS, torch.ones(12, 3).long()],
    ),
    'maps of one class or of several': (
        stream,
        [MAPS, REGIONS],
        [MAPS[:, None], REGIONS],
        [MAPS[:, 1:2], REGIONS[:, 1]],
    ),
    'several classes': (load, [MAPS, REGIONS[:, 1:]], [MAPS[:, 1:2], REGIONS[:, 1:][:, 1]]),
    'classes last, loader': (
        load,
        [MAPS_LAST, MASKS],
        [MAPS_LAST, MASKS, dict(logits=lambda output: output.movedim(-1, 1))],
    ),
    'classes last': (stream, [MAPS_LAST, MASKS], [MAPS_LAST.movedim(-1, 1), MASKS]),
    'other size, loader': (
        load,
        [MAPS, SMALL_MASKS],
        [MAPS, SMALL_MASKS, dict(logits=lambda output: nn.functional.interpolate(output, (4, 5)))],
    ),
    'other size': (
        stream,
        [MAPS, SMALL_MASKS],
        [nn.functional.interpolate(MAPS, (4, 5)), SMALL_MASKS],
    ),
    'other shape': (fit, [MAPS, LABELS[:2]], [ROWS[:2], LABELS[:2]]),
    'unknown axis, loader': (
        load,
        [SQUARE, SQUARE_LABELS],
        [SQUARE, SQUARE_LABELS, dict(logits=lambda output: output.movedim(-1, 1))],
        [SQUARE, SQUARE_LABELS, dict(logits=lambda output: output)],
    ),
    'unknown axis': (
        stream,
        [SQUARE, SQUARE_LABELS],
        [SQUARE[..., None], SQUARE_COLUMN],
        [SQUARE.movedim(-1, 1)[..., None], SQUARE_COLUMN],
    ),
    'several models, loader': (
        load,
        [ROWS, LABELS, ROWS[:, :2], LABELS % 2],
        [ROWS, LABELS],
        [ROWS[:, :2], LABELS % 2],
    ),
    'several models': (stream, [ROWS, LABELS, MAPS, MASKS], [ROWS, LABELS], [MAPS, MASKS]),
    'shares': (measure_softmax, [ROWS[:2], SHARES], [*rows_of_votes(ROWS[:2], SHARES)]),
    'fractions': (stream, [ROWS, LABELS + 0.5], [ROWS, LABELS.float()]),
    'numbered from one': (
        measure_softmax,
        [ROWS, LABELS + 1],
        [ROWS, LABELS + 1 - 1],
        [ROWS, LABELS + 1, dict(ignore_index=3)],
    ),
    'ignored by no loss': (
        loss,
        [ROWS, SOME_IGNORED],
        [ROWS, SOME_IGNORED, IGNORING],
    ),
    'another one is ignored': (
        fit,
        [ROWS, SOME_IGNORED, dict(ignore_index=-100)],
        [ROWS, SOME_IGNORED, IGNORING],
    ),
    'none is ignored': (fit, [ROWS, SOME_IGNORED], [ROWS, SOME_IGNORED, IGNORING]),
    'masked classes': (
        stream,
        [ROWS.masked_fill(LABELS[:, None] == 0, -torch.inf), LABELS],
        [ROWS[LABELS > 0], LABELS[LABELS > 0]],
    ),
    'diverged': (stream, [ROWS * torch.nan, LABELS], [ROWS, LABELS]),
    'masked labels': (
        stream,
        [ZEROS.log(), LABELS],
        [ZEROS.clamp(min=ZEROS[ZEROS > 0].min() / 2).log(), LABELS],
    ),
    'no prediction': (
        measure,
        [PROBS.masked_fill(LABELS[:, None] == 0, torch.nan), LABELS],
        [PROBS[LABELS > 0], LABELS[LABELS > 0]],
    ),
    'logits or percentages': (
        measure,
        [100 * PROBS, LABELS],
        [100 * PROBS / 100, LABELS],
        [PROBS, LABELS],
    ),
    'no softmax, or classes last': (
        measure,
        [SQUARE.softmax(-1), SQUARE_LABELS],
        [SQUARE.softmax(-1).movedim(-1, 1), SQUARE_LABELS],
    ),
    'rounded': (measure, [ROUNDED, LABELS], [ROUNDED / ROUNDED.sum(1, keepdim=True), LABELS]),
    'no softmax': (measure, [SIGMOIDS, LABELS], [PROBS, LABELS]),
    'probabilities': (
        load,
        [100 * PROBS, LABELS],
        [100 * PROBS, LABELS, dict(logits=lambda p: (p / 100).log())],
    ),
    'sigmoid, loader': (
        load,
        [SIGMOIDS, SEVERAL],
        [SIGMOIDS, SEVERAL, dict(logits=lambda p: torch.logit(p, eps=1e-07))],
    ),
    'sigmoid': (
        stream,
        [SIGMOIDS, SEVERAL],
        [torch.logit(SIGMOIDS, eps=1e-07), SEVERAL],
    ),
    'softmax of sigmoids': (stream, [SIGMOIDS, LABELS], [ROWS, LABELS]),
    'one-hot batches': (stream, [ROWS, ONE_HOT_LABELS], [ROWS, ONE_HOT_LABELS.argmax(1)]),
    'tokens': (
        mmcalib.evaluate,
        [
            CausalModel(),
            TOKEN_BATCHES,
            dict(logits=lambda output: output['logits'].movedim(-1, 1)),
        ],
        [
            CausalModel(),
            TOKEN_BATCHES,
            dict(
                unpack=lambda b: ({'input_ids': b['input_ids']}, b['labels'][:, 1:]),
                logits=lambda output: output['logits'][:, :-1].movedim(-1, 1),
            ),
        ],
    ),
    'target of floats': (loss, [ROWS, LABELS.float()], [ROWS, LABELS]),
    'target with an axis of classes': (
        loss,
        [MAPS, MASKS[:, None]],
        [MAPS, MASKS[:, None][:, 0].long()],
    ),
    'one-hot target': (loss, [ROWS, ONE_HOT_LABELS], [ROWS, ONE_HOT_LABELS.argmax(dim=1)]),
    'classes of pred last': (loss, [MAPS_LAST, MASKS], [MAPS_LAST.movedim(-1, 1), MASKS]),
    'binary head': (loss, [ROWS[:, :1], LABELS], [ROWS[:, :2], LABELS % 2]),
    'classes of a data set': (
        segment,
        [MAPS[0], STRANGE_MASK],
        [MAPS[0], STRANGE_MASK, dict(ood_index=77)],
    ),
    'scores of sigmoids': (
        classify,
        [ROWS[0].sigmoid(), LABELS[:1]],
        [ROWS[0].sigmoid(), LABELS[:1], dict(several_labels=True)],
    ),
    'several labels of a sample': (
        classify,
        [ROWS[0].softmax(0), LABELS[:2]],
        [ROWS[0].sigmoid(), LABELS[:2], dict(several_labels=True)],
    ),
    'size of a mask': (segment, [MAPS[0], MASKS[:1, ::2]], [MAPS[0], MASKS[:1]]),
    'classes of a file': (pack, [7, 3], [7, 8], [255, 3]),
}


def call(door, arguments):
    """Call a door with arrays, and with options if a dict stands last."""
    if isinstance(arguments[-1], dict):
        door(*arguments[:-1], **arguments[-1])
    else:
        door(*arguments)


@pytest.mark.filterwarnings('error')
@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize('row', itertools.chain(*TABLE.values()), ids=lambda row: row.key)
def test_row_example_reaches_it_and_its_advice_is_accepted(row):
    door, refused, *mended = EXAMPLES[row.key]
    with pytest.raises((ValueError, UserWarning)) as raised:
        call(door, refused)
    texts = re.split(r'\{[^{}]*\}', row.remedy.replace('{{', '').replace('}}', ''))
    assert re.search('.*'.join(map(re.escape, texts)), str(raised.value))
    for arguments in mended:
        call(door, arguments)


def test_table_keys_are_unique_and_no_row_is_shadowed():
    keys = [row.key for row in itertools.chain(*TABLE.values())]
    assert sorted(keys) == sorted(EXAMPLES)
    for rows in TABLE.values():
        for row in rows[:-1]:
            assert row.door or row.holds is not always
