"""Temperatures of pixels against those that the logits were drawn with."""

import pytest
import torch
from torch.nn.functional import cross_entropy, max_pool2d

from mmcalib.posthoc import LocalTemperatureScaler, TemperatureScaler


def draw(n=60, noisy=5.0, seed=0, size=(24, 28)):
    """Maps that are `noisy` times too large around pixels of their own class, 2 times elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 3, *size, generator=generator, dtype=torch.float64)
    seeds = torch.rand(n, 1, *size, generator=generator) < 0.01
    seeds = max_pool2d(seeds.double(), 3, stride=1, padding=1)
    around = max_pool2d(seeds, 5, stride=1, padding=2) > 0
    logits[:, 2:] = torch.where(seeds > 0, 9.0, logits[:, 2:])
    rows = logits.movedim(1, -1).flatten(0, -2).softmax(dim=1)
    labels = rows.multinomial(1, generator=generator).reshape(n, *size)
    return logits * torch.where(around, noisy, 2.0), labels


def nll(scaler, logits, labels):
    return cross_entropy(scaler.transform(logits), labels).item()


class TestTemperatures:
    def test_it_sees_what_is_around_a_pixel(self):
        train, held_out = draw(), draw(seed=1)
        single = nll(TemperatureScaler().fit(*train), *held_out)
        best = cross_entropy(draw(noisy=2.0, seed=1)[0] / 2, held_out[1]).item()
        found = nll(LocalTemperatureScaler().fit(*train), *held_out)
        assert best < found < single - 0.5 * (single - best)

    def test_where_one_is_enough_it_does_no_worse(self):
        train, held_out = draw(20, noisy=2.0), draw(noisy=2.0, seed=1)
        single = nll(TemperatureScaler().fit(*train), *held_out)
        assert nll(LocalTemperatureScaler().fit(*train), *held_out) < 1.001 * single

    def test_permuted_classes_are_as_good(self):
        (logits, labels), (z, y) = draw(20), draw(seed=1)
        order = torch.tensor([2, 0, 1])
        plain = nll(LocalTemperatureScaler().fit(logits, labels), z, y)
        other = LocalTemperatureScaler().fit(logits[:, order], order.argsort()[labels])
        assert nll(other, z[:, order], order.argsort()[y]) == pytest.approx(plain, rel=0.02)

    def test_they_stay_within_four_times_the_single_one(self):
        scaler = LocalTemperatureScaler(max_epochs=3).fit(*draw(8))
        logits = draw(8, seed=1)[0]
        gaps = logits - logits.amax(dim=1, keepdim=True)
        scaler.weight3_.mul_(1e4)
        for sign, expected in ((1, 4.0), (-1, 0.25)):
            scaler.weight3_, scaler.bias3_ = sign * scaler.weight3_.abs(), sign * torch.ones(1)
            temperatures = gaps[gaps < 0] / scaler.transform(logits)[gaps < 0]
            assert temperatures.min().item() == pytest.approx(expected * scaler.temperature_)
            assert temperatures.max().item() == pytest.approx(expected * scaler.temperature_)


class TestTraining:
    def test_the_seed_says_it_all(self):
        train = draw(8)
        a, b, other = (LocalTemperatureScaler(max_epochs=4, seed=s).fit(*train) for s in (0, 0, 1))
        assert a.parameters == b.parameters != other.parameters

    def test_what_is_held_out_says_when_to_stop(self, monkeypatch):
        """Of maps whose labels say nothing about places, the start is hardly ever left."""
        epochs = []
        adam = torch.optim.Adam.step
        monkeypatch.setattr(torch.optim.Adam, 'step', lambda self: epochs.append(1) or adam(self))
        LocalTemperatureScaler().fit(*draw(10, noisy=2.0))
        steps_per_epoch = 2
        assert len(epochs) < 60 * steps_per_epoch

    def test_one_group_stays_at_the_single_temperature(self):
        logits, labels = draw(4)
        with pytest.warns(UserWarning, match='one group of maps'):
            scaler = LocalTemperatureScaler().fit(logits, labels, [3, 3, 3, 3])
        single = TemperatureScaler().fit(logits, labels)
        torch.testing.assert_close(scaler.predict_proba(logits), single.predict_proba(logits))

    def test_maps_of_one_group_are_not_apart(self, monkeypatch):
        """Else what is held out would be known from training."""
        seen = []
        train = LocalTemperatureScaler._train

        def watch(self, learned, maps, held_out, generator):
            seen.append(({one.group for one in maps}, {one.group for one in held_out}))
            return train(self, learned, maps, held_out, generator)

        monkeypatch.setattr(LocalTemperatureScaler, '_train', watch)
        LocalTemperatureScaler(max_epochs=1).fit(*draw(12), [7, 2, 5] * 4)
        ((trained, held_out),) = seen
        assert trained | held_out == {2, 5, 7} and not trained & held_out and held_out

    def test_maps_of_several_sizes(self):
        logits, labels = draw(6)
        maps = [z[:, :, :w] for z, w in zip(logits, (9, 12, 28, 1, 5, 20), strict=True)]
        truth = [y[:, :w] for y, w in zip(labels, (9, 12, 28, 1, 5, 20), strict=True)]
        scaler = LocalTemperatureScaler(max_epochs=2).fit(maps, truth)
        assert scaler.num_predictions_ == 75 * 24

    @pytest.mark.parametrize('options', [{'max_epochs': 0}, {'seed': -1}])
    def test_wrong_options_are_refused(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            LocalTemperatureScaler(**options)
