"""
Which scaling for how much data?
================================

A temperature has one parameter, vector scaling two for each class, matrix scaling one for each
pair of classes. More parameters can repair more, and need more held-out data to be learned from.
"""

# %%
# One network, many held-out predictions
# --------------------------------------
# The network is trained on few digits, so that thousands of noisy copies of the others are left:
# some for the fit, the rest for the test.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from mmcalib.metrics import expected_calibration_error, negative_log_likelihood
from mmcalib.posthoc import SCALERS

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
train_x, rest_x, train_y, rest_y = train_test_split(images, labels, train_size=300, random_state=0)


def noisy(x):
    return x + rng.normal(0, 6, x.shape)


network = MLPClassifier(hidden_layer_sizes=128, alpha=0, max_iter=300, random_state=0)
network.fit(noisy(train_x), train_y)
logits = np.concatenate([np.log(network.predict_proba(noisy(rest_x)) + 1e-12) for _ in range(4)])
labels = np.tile(rest_y, 4)
order = rng.permutation(len(labels))
logits, labels = logits[order], labels[order]
test = slice(3000, None)

# %%
# Fit each scaling on ever more predictions
# -----------------------------------------
# Every scaler has ``fit(logits, labels)`` and ``predict_proba(logits)``. All are measured on the
# same test predictions, which no fit has seen.

methods = ['temperature', 'ets', 'vector', 'matrix', 'isotonic']
sizes = [50, 100, 300, 1000, 3000]
nll = {method: [] for method in methods}
ece = {method: [] for method in methods}
for method in methods:
    for size in sizes:
        scaler = SCALERS[method]().fit(logits[:size], labels[:size])
        probs = scaler.predict_proba(logits[test])
        nll[method].append(negative_log_likelihood(probs, labels[test]))
        ece[method].append(expected_calibration_error(probs, labels[test]))

# %%
# The likelihood decides
# ----------------------
# The negative log-likelihood (NLL) sees every probability, the ECE only that of the predicted
# class. Judge a scaling by its NLL, and take the simplest of those that are equally good: that is
# what ``tools/calibrate.py --method auto`` does.

trained = np.exp(logits[test])
before = {
    'NLL (nats)': negative_log_likelihood(trained, labels[test]),
    'ECE (%)': expected_calibration_error(trained, labels[test]),
}
figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout='constrained')
for axes, (name, level), values in zip(panels, before.items(), (nll, ece), strict=True):
    axes.axhline(level, color='black', linestyle='--', label='as trained')
    for method in methods:
        axes.plot(sizes, values[method], marker='o', label=method)
    axes.set(xscale='log', xlabel='predictions to fit on', ylabel=name, ylim=(0, None))
panels[1].legend()
plt.show()
