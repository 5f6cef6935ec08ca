"""
Is my classifier calibrated?
============================

A reliability diagram answers at a glance: it shows how often predictions of each confidence are
right. Here a small network learns noisy digits until it is over-confident, and a temperature
repairs it.
"""

# %%
# A network with more weights than data
# -------------------------------------
# scikit-learn brings the digits. Noise makes some of them ambiguous, as real data are.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from mmcalib.metrics import accuracy, expected_calibration_error
from mmcalib.posthoc import TemperatureScaler

images, labels = load_digits(return_X_y=True)
images = images + np.random.default_rng(0).normal(0, 5, images.shape)
train_x, rest_x, train_y, rest_y = train_test_split(images, labels, train_size=600, random_state=0)
val_x, test_x, val_y, test_y = train_test_split(rest_x, rest_y, train_size=400, random_state=0)

network = MLPClassifier(hidden_layer_sizes=256, alpha=0, max_iter=200, random_state=0)
network.fit(train_x, train_y)

# %%
# Measure
# -------
# The functions take probabilities ``(N, K)`` and labels ``(N,)`` and return percent. The expected
# calibration error (ECE) is the mean distance between confidence and accuracy.

probs = network.predict_proba(test_x)
print(f'accuracy {accuracy(probs, test_y):.1f} %')
print(f'mean confidence {100 * probs.max(axis=1).mean():.1f} %')
print(f'ECE {expected_calibration_error(probs, test_y):.1f} %')

# %%
# Repair
# ------
# A temperature is one number that divides all logits. It is fitted on validation data, and no
# predicted class changes. Log-probabilities serve as logits, since their softmax is the same.


def logits_of(x):
    return np.log(np.clip(network.predict_proba(x), 1e-12, 1))


scaler = TemperatureScaler().fit(logits_of(val_x), val_y)
calibrated = scaler.predict_proba(logits_of(test_x))
print(f'temperature {scaler.temperature_:.2f}')
print(f'ECE {expected_calibration_error(calibrated, test_y):.1f} %')

# %%
# Look
# ----
# Bars below the diagonal are confidences that were too high. The number of predictions in each
# bin matters as much as the height of its bar, so both are drawn.


def draw(column, probabilities, title, num_bins=10):
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == test_y
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    count = np.bincount(bins, minlength=num_bins)
    share = np.bincount(bins, right, num_bins) / np.maximum(count, 1)
    places = (np.arange(num_bins) + 0.5) / num_bins
    upper, lower = column
    upper.bar(places, share, 1 / num_bins, edgecolor='white')
    upper.plot([0, 1], [0, 1], 'k--', linewidth=1)
    ece = expected_calibration_error(probabilities, test_y, num_bins=num_bins)
    upper.set(title=f'{title}: ECE {ece:.1f} %', ylabel='accuracy', xlim=(0, 1), ylim=(0, 1))
    lower.bar(places, count, 1 / num_bins, color='grey', edgecolor='white')
    lower.set(xlabel='confidence', ylabel='predictions')


figure, axes = plt.subplots(2, 2, figsize=(8, 5), height_ratios=(3, 1), layout='constrained')
draw(axes[:, 0], probs, 'as trained')
draw(axes[:, 1], calibrated, 'with a temperature')
plt.show()
