"""Logits that are too large for their labels, and the NLL by its definition."""

import numpy as np


def draw(n=400, num_classes=4, temperature=2.5, seed=0):
    """Return logits that are `temperature` times too large, and their labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 2
    return logits * temperature, draw_labels(logits, rng)


def draw_labels(logits, rng):
    """Return labels drawn from the probabilities of the logits."""
    n, num_classes = logits.shape
    if num_classes == 1:
        return (rng.random(n) < 1 / (1 + np.exp(-logits[:, 0]))).astype(np.int64)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.array([rng.choice(num_classes, p=p) for p in probs]).astype(np.int64)


def nll(logits, labels):
    """Return the mean negative log-likelihood by its definition, in numpy."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_probs[np.arange(len(labels)), labels].mean()
