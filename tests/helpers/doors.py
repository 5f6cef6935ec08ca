"""The same logits and labels, measured by each function of the library and by the plug-in."""

import torch
from samples import as_segmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.metrics import StreamingMetrics
from mmcalib.openmmlab.metrics import CalibrationMetric


def draw_logits(*shape, ignored=0.0):
    """Return logits ``(N, K, *)`` and labels that follow them, a share of which is 255."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(shape)
    noisy_logits = logits + 2 * torch.randn(shape)
    labels = noisy_logits.argmax(dim=1)
    if shape[1] == 1:
        labels = (noisy_logits > 0)[:, 0].long()
    return logits, labels.masked_fill(torch.rand(labels.shape) < ignored, 255)


def probabilities(logits):
    """Return the probabilities of logits ``(N, K, *)``, those of a sigmoid if K = 1."""
    return logits.softmax(dim=1) if logits.shape[1] > 1 else logits.sigmoid()


def stream_of(batches, **options):
    stream = StreamingMetrics(**options)
    for batch in batches:
        stream.update(*batch)
    return stream


def by_door(logits, labels, *, batch_size=64, **options):
    """Return the values of logits ``(N, K, *)`` by the names of the functions that measure them."""
    loader = DataLoader(TensorDataset(logits, labels), batch_size=batch_size)
    probs = probabilities(logits.double()).to(logits.dtype)
    return {
        'measure': mmcalib.measure(probs, labels, **options),
        'evaluate': mmcalib.evaluate(nn.Identity(), loader, **options),
        'stream': stream_of(loader, **options).compute(),
    }


def registered_values(logits, labels, names, **options):
    """Return the values of the registered metric, which other tests compare with loops."""
    pairs = zip(logits, labels, strict=True)
    if labels.ndim > 1:
        samples = [as_segmented(z, z.argmax(0), y) for z, y in pairs]
    else:
        samples = [dict(pred_score=z.softmax(0), gt_label=y[None]) for z, y in pairs]
    metric = CalibrationMetric(names, **options)
    metric.process(None, samples)
    values = metric.evaluate(len(samples))
    return {key.removeprefix('calibration/'): value for key, value in values.items()}
