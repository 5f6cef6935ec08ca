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
# scikit-learn includes the digits. Noise makes some of them ambiguous, as in real data.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from mmcalib import reliability_diagram
from mmcalib.metrics import expected_calibration_error, measure
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
print(f'accuracy {measure(probs, test_y, "accuracy"):.1f} %')
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
# Bars below the diagonal show confidences that are too high. The histogram matters as much as the
# bars: a bar of three predictions proves little.

before = reliability_diagram(probs, test_y, title='as trained')

# %%
# With the temperature, the bars follow the diagonal.

after = reliability_diagram(calibrated, test_y, title='with a temperature')
