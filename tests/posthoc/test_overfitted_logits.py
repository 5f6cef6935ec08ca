"""Vector and matrix scaling of an over-fitted network's logits, against a temperature."""

import functools

import numpy as np
import pytest
import torch
from overconfident import nll

from mmcalib.posthoc import MatrixScaler, TemperatureScaler, VectorScaler

NUM_CLASSES = 40


@functools.cache
def overfitted_logits():
    """Return logits and labels of 600 held-out rows, and of 4,000 new ones."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(NUM_CLASSES, 16))
    splits = []
    for count in (1000, 600, 4000):
        labels = generator.integers(NUM_CLASSES, size=count)
        inputs = centres[labels] + generator.normal(size=(count, 16))
        splits.append((torch.tensor(inputs, dtype=torch.float32), labels))
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, NUM_CLASSES)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    inputs, labels = splits[0]
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), torch.from_numpy(labels)).backward()
        optimizer.step()
    with torch.no_grad():
        return [(network(inputs).numpy(), labels) for inputs, labels in splits]


def nll_of_new_rows(scaler):
    """Return the NLL of the new rows after a fit to the held-out ones."""
    _, held_out, new = overfitted_logits()
    return nll(scaler.fit(*held_out).transform(new[0]), new[1])


@pytest.mark.parametrize(('scaler_class', 'least_gain'), [(VectorScaler, 0), (MatrixScaler, 0.02)])
def test_fit_overfitted_logits_is_no_worse_than_temperature(scaler_class, least_gain):
    training_logits, training_labels = overfitted_logits()[0]
    assert (training_logits.argmax(axis=1) == training_labels).mean() > 0.95
    gain = nll_of_new_rows(TemperatureScaler()) - nll_of_new_rows(scaler_class())
    assert gain > least_gain


def test_fit_matrix_of_many_classes_departs_from_diagonal():
    # The paper's penalty is K(K - 1) for each element.
    paper_scaler = MatrixScaler(off_diagonal=(NUM_CLASSES - 1) / 10)
    assert nll_of_new_rows(MatrixScaler()) < nll_of_new_rows(paper_scaler) - 0.01
