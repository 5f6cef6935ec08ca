"""Slow, obvious implementations, in plain loops, that the tests hold the package against."""

import itertools
import math

import numpy as np


def margin_label_smoothing_row(logits, target, margin, alpha, class_reduction='mean', weights=None):
    """Eq. 7 of the paper for one row; `target` is a label or a list of K probabilities."""
    highest = max(logits)
    normaliser = math.log(sum(math.exp(logit - highest) for logit in logits)) + highest
    weights = weights or [1.0] * len(logits)
    shares = (
        target if isinstance(target, list) else [float(k == target) for k in range(len(logits))]
    )
    loss = 0.0
    for logit, weight, share in zip(logits, weights, shares, strict=True):
        loss += weight * share * (normaliser - logit)
    penalty = sum(max(0.0, highest - logit - margin) for logit in logits)
    return loss + alpha * penalty / (len(logits) if class_reduction == 'mean' else 1)


def expected_calibration_error(conf, correct, num_bins=15):
    """ECE over bins (lo, hi] of equal width, in percent."""
    total = 0.0
    for b in range(num_bins):
        inside = [
            i for i, p in enumerate(conf) if b / num_bins < p <= (b + 1) / num_bins or (b == p == 0)
        ]
        if inside:
            accuracy = sum(bool(correct[i]) for i in inside) / len(inside)
            confidence = math.fsum(conf[i] for i in inside) / len(inside)
            total += len(inside) / len(conf) * abs(accuracy - confidence)
    return 100 * total


def adaptive_calibration_error(conf, correct, num_bins=15):
    """AECE over bins of equal mass; what is tied is averaged, so that its order cannot matter."""
    conf, correct = np.asarray(conf, float), np.asarray(correct, float)
    order = np.argsort(conf)
    conf, correct = conf[order], correct[order]
    for value in np.unique(conf):
        correct[conf == value] = correct[conf == value].mean()
    n, total = len(conf), 0.0
    for b in range(num_bins):
        lo, hi = b * n / num_bins, (b + 1) * n / num_bins
        gap = 0.0
        for i in range(n):
            share = max(0.0, min(hi, i + 1) - max(lo, i))  # sample i fills the mass (i, i + 1]
            gap += share * (correct[i] - conf[i])
        total += abs(gap) / n
    return 100 * total


def published_adaptive_calibration_error(conf, correct, num_bins=15):
    """AECE as the paper's code defines it: interpolated edges, then bins (lo, hi]."""
    conf, correct = np.asarray(conf, float), np.asarray(correct, float)
    n = len(conf)
    edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(conf))
    total = 0.0
    for lo, hi in itertools.pairwise(edges):
        inside = (conf > lo) & (conf <= hi)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - conf[inside].mean())
    return 100 * total
