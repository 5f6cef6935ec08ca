"""Evaluated data samples as the toolboxes hand them to a metric, drawn at random."""

import torch

from mmcalib.metrics.log_bins import log_bin_counts


def classified(n, num_classes=7, seed=0):
    """Return samples of mmpretrain: softmax scores and a label."""
    torch.manual_seed(seed)
    scores = torch.softmax(3 * torch.randn(n, num_classes), dim=1)
    labels = torch.multinomial(scores.sqrt(), 1)
    return [
        {'pred_score': s, 'gt_label': y, 'sample_idx': i}
        for i, (s, y) in enumerate(zip(scores, labels, strict=True))
    ]


def segmented(n, num_classes=5, size=(12, 17), seed=0):
    """Return samples of mmseg: raw logits, their argmax, and a label map with some 255."""
    torch.manual_seed(seed)
    samples = []
    for i in range(n):
        logits = 3 * torch.randn(num_classes, *size)
        label = (logits + 3 * torch.randn(logits.shape)).argmax(0)
        label[: i % 3] = 255
        samples.append(as_segmented(logits, logits.argmax(0), label, f'image_{i}.jpg'))
    return samples


def as_segmented(logits, predicted, label, img_path='image.jpg'):
    return {
        'seg_logits': {'data': logits},
        'pred_sem_seg': {'data': predicted[None]},
        'gt_sem_seg': {'data': label[None]},
        'img_path': img_path,
    }


def probabilities(samples):
    """Return class probabilities and labels of all valid predictions, as lists."""
    probs = []
    labels = []
    for sample in samples:
        if 'pred_score' in sample:
            sample_probs = sample['pred_score'][None]
            label = sample['gt_label']
        else:
            label = sample['gt_sem_seg']['data'].flatten()
            valid = label != 255
            label = label[valid]
            sample_probs = sample['seg_logits']['data'].double().softmax(0).flatten(1).T[valid]
        probs += sample_probs.tolist()
        labels += label.tolist()
    return probs, labels


def flatten(samples):
    """Return confidences and correctness of all valid predictions, as lists."""
    probs, labels = probabilities(samples)
    conf = [max(p) for p in probs]
    correct = [p.index(max(p)) == y for p, y in zip(probs, labels, strict=True)]
    return conf, correct


def image_confidences(count, *, pixels=1, spread=1.0):
    """Return confidences and correctness of images, whose accuracies differ by an image effect."""
    torch.manual_seed(0)
    conf = 1 - torch.rand(count, pixels) ** 4 / 2
    effect = spread * torch.randn(count, 1)
    chance = torch.special.ndtr(torch.special.ndtri(conf.clamp(max=1 - 1e-7)) + effect)
    return conf, torch.rand(conf.shape) < chance


def image_narrow_bins(conf, correct):
    """Return the ``(n, 3, C)`` log bins of images."""
    pairs = zip(conf, correct, strict=True)
    return torch.stack([log_bin_counts(c, right, c[:0]) for c, right in pairs])
