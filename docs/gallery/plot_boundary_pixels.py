"""
Calibration along boundaries
============================

One ECE for all pixels hides where a segmentor is miscalibrated. Most pixels are easy; the hard
ones lie along the boundaries between classes.
"""

# %%
# Scenes of digits, and a classifier of pixels
# --------------------------------------------
# Each scene has four digits on a noisy background. The label of a pixel is its digit, or 10 for
# the background. A random forest predicts a pixel from the 7 × 7 pixels around it.

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import distance_transform_edt
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from mmcalib.metrics import expected_calibration_error, measure

rng = np.random.default_rng(0)
digits = load_digits()
SIZE, AROUND, BACKGROUND = 32, 7, 10


def scene(sources):
    image, label = np.zeros((SIZE, SIZE)), np.full((SIZE, SIZE), BACKGROUND)
    for corner in ((3, 3), (3, 19), (19, 3), (19, 19)):
        number = rng.choice(sources)
        y, x = corner + rng.integers(-2, 3, 2)
        drawn = digits.images[number] / 16
        image[y : y + 8, x : x + 8] = drawn
        label[y : y + 8, x : x + 8][drawn > 0.25] = digits.target[number]
    return image + rng.normal(0, 0.15, image.shape), label


def windows(image):
    padded = np.pad(image, AROUND // 2, mode='reflect')
    views = np.lib.stride_tricks.sliding_window_view(padded, (AROUND, AROUND))
    return views.reshape(-1, AROUND**2)


train = [scene(np.arange(1000)) for _ in range(16)]
test = [scene(np.arange(1000, 1797)) for _ in range(12)]
forest = RandomForestClassifier(25, max_features=8, random_state=0)
forest.fit(
    np.concatenate([windows(image) for image, _ in train]),
    np.concatenate([label.ravel() for _, label in train]),
)
probs = forest.predict_proba(np.concatenate([windows(image) for image, _ in test]))
labels = np.concatenate([label.ravel() for _, label in test])
print(f'all pixels: ECE {expected_calibration_error(probs, labels):.1f} %')

# %%
# Near and far from a boundary
# ----------------------------
# The functions of arrays take any selection of pixels. The distance is that to the nearest pixel
# of another class.


def distance(label):
    nearest = np.full(label.shape, np.inf)
    for klass in np.unique(label):
        own = label == klass
        nearest[own] = distance_transform_edt(own)[own]
    return nearest


away = np.concatenate([distance(label).ravel() for _, label in test])
places = {f'{n}': (n - 1 < away) & (away <= n) for n in range(1, 5)} | {'beyond': away > 4}
found = {}
for name, chosen in places.items():
    metrics = ['ECE', 'accuracy', 'confidence']
    found[name] = {'pixels': 100 * chosen.mean(), **measure(probs[chosen], labels[chosen], metrics)}
    print(f'{name:>6}:', ', '.join(f'{k} {v:.1f} %' for k, v in found[name].items()))

# %%
# In a test of a real segmentor, ``CalibrationMetric(per_distance=True)`` measures the same, and
# ``protocol='boundary'`` restricts the ECE to a band around boundaries.

image, label = test[0]
first = probs[: SIZE * SIZE]
figure, panels = plt.subplots(2, 3, figsize=(9, 5.4), layout='constrained')
wrong = (first.argmax(axis=1) != label.ravel()).reshape(SIZE, SIZE)
shown = {
    'image': (image, 'grey'),
    'confidence': (first.max(axis=1).reshape(SIZE, SIZE), 'viridis'),
    'errors': (wrong, 'grey_r'),
}
for axes, (title, (values, colours)) in zip(panels[0], shown.items(), strict=True):
    axes.imshow(values, cmap=colours)
    axes.set(title=title, xticks=[], yticks=[])
for axes, keys in zip(panels[1], [['pixels'], ['ECE'], ['accuracy', 'confidence']], strict=True):
    for key in keys:
        axes.plot(found.keys(), [of[key] for of in found.values()], marker='o', label=key)
    axes.set(xlabel='pixels from the boundary', ylabel='%', ylim=(0, None))
    axes.legend()
plt.show()
