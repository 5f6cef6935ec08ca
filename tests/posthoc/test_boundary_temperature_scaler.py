"""Temperatures of distances from a boundary against those that the logits were drawn with."""

import pytest
import torch
from torch.nn.functional import avg_pool2d, cross_entropy

from mmcalib.posthoc import BoundaryTemperatureScaler, TemperatureScaler
from mmcalib.posthoc.boundary_temperature_scaler import ranges_from_boundary
from mmcalib.samples.boundary_distance import distance_ranges

TRUTH = torch.tensor([1.0, 1.5, 2.0, 3.0, 5.0], dtype=torch.float64)


def draw(n=60, temperatures=TRUTH, seed=0, size=(50, 60)):
    """Maps with regions whose logits are as many times too large as the distance says."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, 3, *size, generator=generator, dtype=torch.float64)
    # Twice an average, so that regions are large enough to have an inside.
    smooth = avg_pool2d(avg_pool2d(noise, 21, 1, 10), 21, 1, 10)
    top = torch.nn.functional.one_hot(smooth.argmax(dim=1), 3).movedim(-1, 1)
    logits = -2 * noise.abs() * (1 - top)
    rows = logits.movedim(1, -1).flatten(0, -2).softmax(dim=1)
    labels = rows.multinomial(1, generator=generator).reshape(n, *size)
    return logits * temperatures[ranges_from_boundary(logits.argmax(dim=1))][:, None], labels


def nll(scaler, logits, labels):
    return cross_entropy(scaler.transform(logits), labels).item()


class TestRanges:
    @pytest.mark.parametrize('size', [(1, 1), (1, 9), (7, 1), (5, 6), (30, 41)])
    def test_they_are_those_of_the_protocols(self, size):
        generator = torch.Generator().manual_seed(0)
        for share in (0.5, 0.99):
            predicted = (torch.rand(8, *size, generator=generator) > share).long() * 3
            expected = torch.stack([distance_ranges(one) for one in predicted]).clamp(max=4)
            assert torch.equal(ranges_from_boundary(predicted), expected)

    def test_a_map_of_one_class_is_far_from_all(self):
        assert (ranges_from_boundary(torch.full((2, 5, 5), 7)) == 4).all()


class TestTemperatures:
    def test_the_true_ones_are_found(self):
        train, held_out = draw(), draw(seed=1)
        scaler = BoundaryTemperatureScaler().fit(*train)
        torch.testing.assert_close(scaler.temperature_, TRUTH, rtol=0.1, atol=0)
        single = TemperatureScaler().fit(*train)
        assert nll(scaler, *held_out) < nll(single, *held_out) - 0.01

    def test_where_one_is_enough_they_do_no_worse(self):
        same = torch.full((5,), 2.0, dtype=torch.float64)
        train, held_out = draw(10, same), draw(30, same, seed=1)
        single = nll(TemperatureScaler().fit(*train), *held_out)
        assert nll(BoundaryTemperatureScaler().fit(*train), *held_out) < 1.001 * single

    def test_permuted_classes(self):
        logits, labels = draw(6)
        order = torch.tensor([2, 0, 1])
        plain = BoundaryTemperatureScaler().fit(logits, labels)
        other = BoundaryTemperatureScaler().fit(logits[:, order], order.argsort()[labels])
        torch.testing.assert_close(other.temperature_, plain.temperature_)

    def test_images_without_a_boundary(self):
        logits, labels = draw(6)
        logits[:, 0] = logits.amax(dim=1) + 3
        labels[:, ::2] = 0
        scaler = BoundaryTemperatureScaler().fit(logits, labels)
        single = TemperatureScaler().fit(logits, labels).temperature_
        torch.testing.assert_close(scaler.temperature_[:4], torch.full((4,), single).double())

    @pytest.mark.parametrize('seed', range(3))
    def test_copies_of_a_map_count_as_one(self, seed):
        # Maps of differing confidence: their pixels amount to fewer independent ones.
        logits, labels = draw(5, seed=seed)
        logits = logits * torch.linspace(0.2, 2, 5, dtype=torch.float64).view(-1, 1, 1, 1)
        rows = torch.arange(5).repeat_interleave(4)
        alone = BoundaryTemperatureScaler().fit(logits, labels)
        copied = BoundaryTemperatureScaler().fit(logits[rows], labels[rows], rows)
        taken_for_new = BoundaryTemperatureScaler().fit(logits[rows], labels[rows])
        torch.testing.assert_close(copied.temperature_, alone.temperature_, rtol=1e-9, atol=0)
        assert (taken_for_new.temperature_ / alone.temperature_ - 1).abs().max() > 0.1


class TestMaps:
    def test_of_several_sizes_in_a_list(self):
        logits, labels = draw(6)
        maps = [logits[0, :, :20], logits[1], logits[2, :, :, 7:40]]
        truth = [labels[0, :20], labels[1], labels[2, :, 7:40]]
        scaler = BoundaryTemperatureScaler().fit(maps, truth)
        assert scaler.num_predictions_ == sum(part.numel() for part in truth)
        # As if cut by labels that are ignored, but for what is beyond the cut.
        cut = labels[:3].clone()
        cut[0, 20:], cut[2, :, :7], cut[2, :, 40:] = 255, 255, 255
        other = BoundaryTemperatureScaler().fit(logits[:3], cut, ignore_index=255)
        assert other.num_predictions_ == scaler.num_predictions_
        torch.testing.assert_close(other.temperature_, scaler.temperature_, rtol=0.1, atol=0)

    def test_what_does_not_fit_is_said(self):
        logits, labels = draw(2)
        fit = BoundaryTemperatureScaler().fit
        for z, y, error, message in (
            (logits, labels[:1], ValueError, 'each of 2 maps, got 1'),
            (logits[0], labels[0], ValueError, 'there must be labels'),
            (logits[:1, 0], labels[:1], ValueError, 'must be maps'),
            ([logits[0], logits[1, :2]], labels, ValueError, 'map 1'),
            (logits[:, :, :5], labels, ValueError, 'map 0'),
            (logits, labels.double(), TypeError, 'integers'),
            (logits, labels + 7, ValueError, 'outside'),
            (logits, labels - 1, ValueError, 'outside'),
            ([], [], ValueError, 'nothing to fit'),
        ):
            with pytest.raises(error, match=message):
                fit(z, y)
        with pytest.raises(ValueError, match='got 2 and 1'):
            fit(logits, labels, [0])

    def test_rows_are_refused(self):
        scaler = BoundaryTemperatureScaler().fit(*draw(2))
        with pytest.raises(ValueError, match=r'requires maps of logits .* got \(5, 3\)'):
            scaler.transform(torch.zeros(5, 3))
