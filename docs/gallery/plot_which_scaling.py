"""
Which scaling for how much data?
================================

A temperature has one parameter, vector scaling two per class, matrix scaling one per pair of
classes. More parameters can repair more, if there are enough held-out data to fit them.
"""

# %%
# One network, many held-out predictions
# --------------------------------------
# The network is trained on few digits. Noisy copies of the other digits give thousands of
# predictions: those of some images serve for the fit, the rest for the test.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from mmcalib.metrics import measure
from mmcalib.posthoc import SCALERS

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
train_x, rest_x, train_y, rest_y = train_test_split(images, labels, train_size=300, random_state=0)


def noisy(x):
    return x + rng.normal(0, 6, x.shape)


network = MLPClassifier(hidden_layer_sizes=128, alpha=0, max_iter=300, random_state=0)
network.fit(noisy(train_x), train_y)


def predictions(x, y, copies):
    logits = np.log(network.predict_proba(noisy(np.tile(x, (copies, 1)))) + 1e-12)
    order = rng.permutation(len(logits))
    return logits[order], np.tile(y, copies)[order]


fit_logits, fit_labels = predictions(rest_x[:750], rest_y[:750], copies=4)
test_logits, test_labels = predictions(rest_x[750:], rest_y[750:], copies=2)

# %%
# Fit each scaling on ever more predictions
# -----------------------------------------
# Every scaler has ``fit(logits, labels)`` and ``predict_proba(logits)``. All are evaluated on the
# same test predictions, which no fit has seen.

methods = ['temperature', 'ets', 'vector', 'matrix', 'isotonic']
sizes = [50, 100, 300, 1000, 3000]
found = {method: [] for method in methods}
for method in methods:
    for size in sizes:
        scaler = SCALERS[method]().fit(fit_logits[:size], fit_labels[:size])
        probs = scaler.predict_proba(test_logits)
        found[method].append(measure(probs, test_labels, ['NLL', 'ECE']))

# %%
# The likelihood decides
# ----------------------
# The negative log-likelihood (NLL) depends on every probability, the ECE only on that of the
# predicted class: with 300 predictions or more, the ECE hardly tells the scalings apart. Penalties
# keep vector and matrix scaling close to a temperature unless the data outweigh them. Judge a
# scaling by its NLL, and take the simplest of those that are equally good, as ``--method auto`` of
# ``tools/calibrate.py`` does.

before = measure(np.exp(test_logits), test_labels, ['NLL', 'ECE'])
figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout='constrained')
for axes, (name, unit) in zip(panels, {'NLL': 'nats', 'ECE': '%'}.items(), strict=True):
    for method in methods:
        axes.plot(sizes, [each[name] for each in found[method]], marker='o', label=method)
    axes.set(xscale='log', xlabel='predictions to fit on', ylabel=f'{name} ({unit})')
    axes.set_title(f'as trained: {before[name]:.2f}')
panels[0].legend()
plt.show()
