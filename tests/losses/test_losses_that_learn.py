"""What losses learn from the statistics of a validation, and what of it a checkpoint holds."""

import pytest
import references
import torch

from mmcalib.losses import AdaFocalLoss, CALSLoss


def draw(rows, num_classes, scale=6.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, num_classes, generator=generator)


class TestCALS:
    def test_multipliers_of_their_own_classes(self):
        loss = CALSLoss(4, margin=3.0, rho=2.0, reduction='none')
        loss.multipliers.copy_(torch.tensor([0.0, 0.5, 1.0, 4.0]))
        logits, target = draw(9, 4).double(), torch.arange(9) % 4
        expected = [
            references.cals_row(row, label, loss.multipliers.tolist(), 2.0, 3.0)
            for row, label in zip(logits.tolist(), target.tolist(), strict=True)
        ]
        torch.testing.assert_close(loss(logits, target), torch.tensor(expected).double())

    def test_an_update_equals_a_plain_loop(self):
        loss = CALSLoss(4, margin=3.0, rho=2.0, rho_interval=2)
        multipliers, last, rho = [1e-6] * 4, 0.0, 2.0
        # The penalty of the 4th is far below the one before, so rho stays; the 2nd's is not.
        for number, scale in enumerate([6.0, 6.0, 9.0, 2.0], 1):
            logits = draw(17, 4, scale, seed=number)
            multipliers, penalty = references.cals_update(logits.tolist(), multipliers, rho, 3.0)
            if number % 2 == 0 and penalty > 0.9 * last > 0:
                rho *= 1.2
            last = penalty
            statistics = loss.statistics(logits[:5]) + loss.statistics(logits[5:])
            loss.update(statistics)
            assert loss.multipliers.tolist() == pytest.approx(multipliers, rel=1e-5)
            assert loss.last_penalty.item() == pytest.approx(penalty, rel=1e-5)
            assert loss.rho.item() == pytest.approx(rho)
        assert rho == pytest.approx(2.4) and min(multipliers) > 1e-6

    def test_rho_stays_below_its_largest(self):
        loss = CALSLoss(4, margin=1.0, rho=1.0, rho_max=1.3, rho_interval=1)
        for seed in range(4):
            loss.update(loss.statistics(draw(17, 4, 6.0 + seed)))
            assert (loss.rho == 1) == (seed == 0)  # the first penalty has none before it
        assert loss.rho.item() == pytest.approx(1.3)

    def test_nothing_is_learnt_from_nothing(self):
        loss = CALSLoss(4)
        loss.update(loss.statistics(torch.zeros(0, 4)))
        assert loss.multipliers.tolist() == pytest.approx([1e-6] * 4) and loss.num_updates == 0

    def test_a_state_dict_holds_what_was_learnt(self):
        loss, other = CALSLoss(4, margin=1.0, rho_interval=1), CALSLoss(4, margin=1.0)
        for scale in (6.0, 7.0):
            loss.update(loss.statistics(draw(17, 4, scale)))
        other.load_state_dict(loss.state_dict())
        logits, target = draw(9, 4), torch.arange(9) % 4
        assert other(logits, target) == loss(logits, target) != CALSLoss(4)(logits, target)
        assert (other.rho, other.num_updates) == (loss.rho, 2)


class TestAdaFocal:
    def test_a_probability_at_an_edge_is_in_the_upper_bin(self):
        loss = AdaFocalLoss(num_bins=2, reduction='none')
        loss.update([0.5], [1.0, -5.0])  # the gammas e and, after the switch, -0.2
        expected = 1.5**0.2 * torch.tensor(2.0).log()
        assert loss(torch.zeros(1, 2), torch.tensor([0])).item() == pytest.approx(expected.item())

    @pytest.mark.parametrize(
        ('gamma', 'gap', 'expected'),
        [
            (1.0, 0.3, 1.349859),
            (1.0, -0.3, 0.740818),
            (0.25, -0.3, -0.2),  # too close to 0: inverse
            (-0.25, 0.3, 0.2),  # and back
            (-1.0, 0.3, -0.740818),
            (-1.9, -0.3, -2.0),
            (19.0, 0.3, 20.0),
        ],
    )
    def test_the_rule(self, gamma, gap, expected):
        loss = AdaFocalLoss(num_bins=2, gamma=gamma)
        loss.update([0.5], [gap, 0.0])
        assert loss.gammas.tolist() == pytest.approx([expected, gamma])
