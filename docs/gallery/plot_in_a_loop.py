"""
In a loop of your own, with pictures
====================================

``StreamingMetrics`` takes batch after batch in any evaluation loop: plain PyTorch, Lightning or
Accelerate. What it returns is a dict that prints as a table, and draws.
"""

# %%
# A segmentor, trained as usual
# -----------------------------
# Discs of three colours in noise, on a background.

import json

import torch
from torch import nn

import mmcalib
from mmcalib.metrics import StreamingMetrics

torch.manual_seed(0)
NAMES, COLOURS = ['ground', 'red', 'green', 'blue'], torch.eye(4)[:, 1:]
rows, columns = torch.meshgrid(torch.arange(48), torch.arange(64), indexing='ij')


def scenes(number):
    labels = torch.zeros(number, 48, 64, dtype=torch.long)
    for label in labels:
        for disc in (1, 2, 3):
            row, column, radius = torch.rand(3) * torch.tensor([48, 64, 10]) + torch.tensor(
                [0, 0, 6]
            )
            label[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = disc
    images = COLOURS[labels].movedim(-1, 1) + 1.5 * torch.randn(number, 3, 48, 64)
    labels[:, :2] = 255  # not labelled
    return images, labels


images, labels = scenes(2)
model = nn.Sequential(
    nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(),
    nn.Conv2d(32, 4, 1),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels, ignore_index=255).backward()
    optimizer.step()

# %%
# Measure while you evaluate
# --------------------------
# ``update`` takes logits and labels. An interval is a bootstrap over the images; the closing line
# names the metrics that have none. In a process group every rank calls ``compute``, and gets the
# same numbers; ``size=len(dataset)`` leaves out what a ``DistributedSampler`` repeats.

images, labels = scenes(40)
loader = [*zip(images.split(8), labels.split(8), strict=True)]

stream = StreamingMetrics(ignore_index=255, interval=0.95)
with torch.no_grad():
    for batch, target in loader:
        stream.update(model.eval()(batch), target)
found = stream.compute()
stream.reset()  # for the next epoch
print(found)

# %%
# It is a dict
# ------------
# So it goes into any logger, as ``self.log_dict(found)`` of Lightning does, and chooses the best
# checkpoint. ``to_dict`` is for JSON: NaN, of a stream without predictions, becomes null.

print(round(found['NLL'], 3), json.dumps(found.to_dict())[:60], '…')

# %%
# Draw it
# -------
# All pixels together, with intervals over images:

diagram = mmcalib.reliability_diagram(found, title='40 scenes')

# %%
# Each image by itself: below the diagonal it is over-confident.

by_image = mmcalib.image_calibration_diagram(found)

# %%
# The worst-calibrated of a few images, from arrays:

batch, target = loader[0]
with torch.no_grad():
    probs = model(batch).softmax(dim=1)
palette = (200 * COLOURS + 40).int().tolist()
maps = mmcalib.confidence_maps(
    batch, probs, target, ignore_index=255, classes=NAMES, palette=palette, worst=2
)

# %%
# Compare several
# ---------------
# Measurements by name share a figure.

images, labels = scenes(20)
held_out = [*zip(images.split(10), labels.split(10), strict=True)]
calibrated = mmcalib.calibrate(model, held_out, ignore_index=255).model
again = mmcalib.evaluate(calibrated, loader, ignore_index=255)
both = mmcalib.reliability_diagram({'as trained': found, 'calibrated': again}, overlay=True)
