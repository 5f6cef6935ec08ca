"""
Volumes: a small 3-D U-Net
==========================

Medical segmentors predict volumes ``(N, K, D, H, W)``. They are measured and calibrated as images
are: each volume is one draw, since its voxels are not independent.
"""

# %%
# A segmentor of volumes
# ----------------------
# An organ and a lesion in noise, as balls: background 0, organ 1, lesion 2.

import torch
from torch import nn
from torch.nn import functional as F

import mmcalib

torch.manual_seed(0)
SIZE = 20
voxels = torch.cartesian_prod(*[torch.arange(SIZE, dtype=torch.float32)] * 3)


def volumes(number):
    labels = torch.zeros(number, SIZE**3, dtype=torch.long)
    for label in labels:
        for structure, radius in enumerate((7, 4), start=1):
            center = SIZE / 2 + 2 * torch.randn(3)
            size = radius * (0.8 + 0.4 * torch.rand(1))
            label[(voxels - center).norm(dim=1) < size] = structure
    labels = labels.unflatten(1, (SIZE, SIZE, SIZE))
    return labels[:, None] + 1.5 * torch.randn(number, 1, SIZE, SIZE, SIZE), labels


def block(channels, width):
    layers = []
    for c in (channels, width):
        layers += [nn.Conv3d(c, width, 3, padding=1), nn.InstanceNorm3d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom, self.up = block(1, 8), block(8, 16), block(24, 8)
        self.predict = nn.Conv3d(8, 3, 1)

    def forward(self, image):
        skip = self.down(image)
        deep = F.interpolate(self.bottom(F.max_pool3d(skip, 2)), scale_factor=2)
        return self.predict(self.up(torch.cat([skip, deep], dim=1)))


train, held_out, test = (
    [*zip(*(tensor.split(1) for tensor in volumes(number)), strict=True)] for number in (3, 12, 12)
)
network = UNet()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(90):
    for image, label in train:
        optimizer.zero_grad()
        F.cross_entropy(network(image), label).backward()
        optimizer.step()

# %%
# Three volumes are few to learn from: the network claims more than it knows. The intervals are a
# bootstrap over the volumes.

metrics = ['accuracy', 'gap', 'ECE', 'NLL']
print(mmcalib.evaluate(network, test, metrics, interval=0.95))

# %%
# Calibrate it
# ------------
# Slices or patches would name their volume in ``groups``. The temperature is folded into
# the last convolution: sliding windows, mirrored views and exports use it like any other weights.

found = mmcalib.calibrate(network, held_out)
print(found)
print(mmcalib.evaluate(found.model, test, metrics, interval=0.95))


# %%
# As a picture
# ------------
# Most voxels are predicted with more than 95 %: on axes of log-odds those bins are apart.


def diagram(model, **options):
    with torch.no_grad():
        probs = torch.cat([model.eval()(image).softmax(1) for image, _ in test])
    labels = torch.cat([label for _, label in test])
    return mmcalib.reliability_diagram(probs, labels, scale='logit', **options)


as_trained = diagram(network, title='as trained')

# %%

calibrated = diagram(found.model, title='calibrated')
