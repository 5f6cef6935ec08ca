"""
Why an ECE needs an interval
============================

The ECE adds up the sizes of gaps, and noise causes gaps too. So even a *perfectly* calibrated model
has an ECE above zero, and the fewer the predictions, the larger it is.
"""

# %%
# Predictions that are right as often as they claim
# -------------------------------------------------
# Each prediction draws a confidence, then comes true with exactly that probability. The true ECE
# is 0.

import matplotlib.pyplot as plt
import numpy as np

from mmcalib import measure

rng = np.random.default_rng(0)


def calibrated_predictions(n):
    conf = rng.uniform(0.5, 1, n)
    return conf, rng.uniform(size=n) < conf


sizes = [100, 300, 1000, 3000, 10000]
repeats = 50
ece, debiased = np.empty((2, len(sizes), repeats))
for row, size in enumerate(sizes):
    for column in range(repeats):
        conf, correct = calibrated_predictions(size)
        ece[row, column] = measure(metrics='ECE', conf=conf, correct=correct)
        debiased[row, column] = measure(metrics='debiasedECE', conf=conf, correct=correct)
for size, values in zip(sizes, ece, strict=True):
    print(f'{size:6} predictions of a calibrated model: ECE {values.mean():.1f} % on average')

# %%
# The interval of one draw
# ------------------------
# ``interval=0.95`` adds its ends. A test has the same with
# ``CalibrationMetric(confidence_interval=0.95)``, over its images.

found = []
for size in sizes:
    conf, correct = calibrated_predictions(size)
    found.append([*measure(metrics='ECE', conf=conf, correct=correct, interval=0.95).values()])
for size, (value, low, high) in zip(sizes, found, strict=True):
    print(f'{size:6} predictions: ECE {value:.1f} %, 95 % interval {low:.1f} to {high:.1f} %')

# %%
# What to conclude
# ----------------
# Two models whose ECEs differ by 2 points on 300 images may be equally well calibrated. The
# interval reaches down to 0 if the data cannot tell the model from a calibrated one. The debiased
# estimate subtracts the expected noise, and is closer to zero at every size.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout='constrained')
for values, name in ((ece, 'ECE'), (debiased, 'debiased')):
    line = left.plot(sizes, values.mean(axis=1), marker='o', label=name)[0]
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    left.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2)
left.set(
    xscale='log', title='50 draws: mean, 5 % to 95 %', xlabel='predictions', ylabel='error (%)'
)
left.legend()
values, *bounds = np.array(found).T
right.errorbar(sizes, values, abs(bounds - values), fmt='o', capsize=4)
right.axhline(0, color='black', linestyle='--', linewidth=1)
right.set(xscale='log', title='one draw: ECE and its 95 % interval', xlabel='predictions')
plt.show()
