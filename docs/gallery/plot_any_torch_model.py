"""
Any torch model, calibrated in one call
=======================================

The network and its training are plain PyTorch. ``mmcalib.evaluate`` measures it,
``mmcalib.calibrate`` returns a copy with calibrated weights: the same class, the same keys, and as
fast.
"""

# %%
# A network, trained as usual
# ---------------------------
# Small images of digits: some to train on, some held out for the calibration, the rest for the
# test.

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import mmcalib

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)
images = (images / 16 + 0.5 * torch.randn(images.shape)).clamp(0, 1)
data = TensorDataset(images, torch.tensor(labels))
train, held_out, test = random_split(data, [400, 600, 797])
held_out, test = DataLoader(held_out, batch_size=100), DataLoader(test, batch_size=100)


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(64 * 16, 10),
        )  # fmt: skip


network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for _ in range(40):
    for batch, target in DataLoader(train, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch), target).backward()
        optimizer.step()

# %%
# Is it calibrated?
# -----------------
# A loader gives the model its batches; intervals are a bootstrap over the images. That of an ECE is
# without the bias of few images, which the ECE itself has.

metrics = ['accuracy', 'confidence', 'ECE', 'NLL']
print(mmcalib.evaluate(network, test, metrics, interval=0.95))

# %%
# Calibrate it
# ------------
# One pass over the held-out images fits a temperature, which is folded into the last layer. The
# figures before and after are cross-fitted: no image is scored by a scaling that has seen it.

found = mmcalib.calibrate(network, held_out)
print(found)

# %%
# The weights are ordinary ones
# -----------------------------
# They load into the class that you have, and can be exported and served as before. On the test
# images, which neither training nor calibration has seen:

again = Network()
again.load_state_dict(found.model.state_dict())
print(mmcalib.evaluate(again, test, metrics, interval=0.95))


# %%
# As a picture
# ------------


def probabilities(model):
    with torch.no_grad():
        model.eval()
        return torch.cat([model(batch).softmax(1) for batch, _ in test])


targets = torch.cat([target for _, target in test])
as_trained = mmcalib.reliability_diagram(probabilities(network), targets, title='as trained')

# %%

calibrated = mmcalib.reliability_diagram(probabilities(again), targets, title='calibrated')
