"""Torch networks that are too sure of themselves, with inputs and labels for them."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# The shape of the pixels of one image.
SHAPES = {'classifier': (), 'segmentor': (6, 7), 'volume': (3, 4, 5)}
# By how much the logits are too large.
OVERCONFIDENCE = 3
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Network(nn.Module):
    """A network of random weights for images, maps or volumes of five channels.

    Args:
        shape: Shape of the pixels; empty for a classifier.
        num_logits: K.
        cosine: Whether the logits are normalised after the last layer, so that none can absorb a
            scaling.
        output: ``'tensor'`` of logits; ``'out'`` or ``'logits'`` for a dict with that key;
            ``'object'`` for one with an attribute ``logits``.
    """

    def __init__(self, shape=(), num_logits=4, *, cosine=False, output='tensor'):
        super().__init__()
        layer = LAYERS[len(shape)]
        kernel_size = [1] if shape else []
        self.body = layer(5, 8, *kernel_size)
        self.norm = NORMS[len(shape)](8)
        self.fc = layer(8, num_logits, *kernel_size)
        self.cosine = cosine
        self.output = output
        self.fc.weight.data *= 8

    def forward(self, x):
        logits = self.fc(self.features(x))
        if self.cosine:
            logits = 9 * nn.functional.normalize(logits, dim=1)
        if self.output == 'tensor':
            return logits
        if self.output == 'object':
            return SimpleNamespace(logits=logits, loss=None)
        return {self.output: logits, 'aux': 0}

    def features(self, x):
        return self.norm(self.body(x)).relu()


def make_data(shape=(), *, num_images=60, num_logits=4, sigmoids=False):
    """Return a network, inputs, and labels that are as likely as a third of its logits say.

    Labels are ``(N, *)`` classes; ``(N, K, *)`` of 0 and 1 before sigmoids.
    """
    torch.manual_seed(0)
    network = Network(shape, num_logits).eval()
    inputs = torch.randn(num_images, 5, *shape)
    with torch.no_grad():
        logits = network(inputs) / OVERCONFIDENCE
    if sigmoids or num_logits == 1:
        labels = (torch.rand(logits.shape) < logits.sigmoid()).long()
    else:
        labels = draw_classes(logits)
    return network, inputs, labels


def draw_classes(logits):
    """Return classes ``(N, *)`` that are as likely as logits ``(N, K, *)`` say."""
    probs = logits.softmax(dim=1).movedim(1, -1)
    return torch.distributions.Categorical(probs=probs).sample()


def make_loader(inputs, labels, *, batch_size=16, **options):
    """Return a loader, in the order of the inputs unless options shuffle."""
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size, **options)


def assert_predicts_scaled_probabilities(calibrated, network, inputs):
    """Assert that a calibrated model predicts the scaled probabilities of the original."""
    with torch.no_grad():
        expected = calibrated.scaler.predict_proba(network.eval()(inputs))
        actual = calibrated.model(inputs).softmax(dim=1)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
