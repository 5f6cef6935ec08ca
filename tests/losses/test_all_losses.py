"""What holds for every loss: values and gradients of a loop, numerical safety, limits."""

import math

import pytest
import references
import torch
import torch.nn.functional as F

from mmcalib.losses import (
    ACLSLoss,
    AdaFocalLoss,
    BrierLoss,
    BSCELoss,
    CALSLoss,
    ConfidencePenaltyLoss,
    DualFocalLoss,
    InverseFocalLoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
    SampleDependentFocalLoss,
    SoftmaxFocalLoss,
    margin_penalty,
)

IGNORED = 255


class AnyCALSLoss(CALSLoss):
    """Has learnt one multiplier, of as many classes as there are logits."""

    def __init__(self, multiplier, **options):
        super().__init__(num_classes=2, **options)
        self.multiplier = multiplier

    def read_call(self, pred, *call):
        self.num_classes = pred.shape[1]
        self.multipliers = torch.full((self.num_classes,), self.multiplier, device=pred.device)
        return super().read_call(pred, *call)


class LearntAdaFocalLoss(AdaFocalLoss):
    """Has learnt gammas of both signs."""

    def __init__(self, gammas, edges, **options):
        super().__init__(num_bins=len(gammas), **options)
        self.gammas.copy_(torch.tensor(gammas))
        self.edges.copy_(torch.tensor(edges))


# Name: the loss, its options, the loop over one row, and the options of that.
LOSSES = {
    'mbls': (
        MarginLabelSmoothingLoss,
        dict(margin=6.0, alpha=0.3),
        references.margin_label_smoothing_row,
        dict(margin=6.0, alpha=0.3),
    ),
    'mbls m=0, sum': (
        MarginLabelSmoothingLoss,
        dict(margin=0.0, alpha=0.05, class_reduction='sum'),
        references.margin_label_smoothing_row,
        dict(margin=0.0, alpha=0.05, class_reduction='sum'),
    ),
    'ls': (LabelSmoothingLoss, dict(alpha=0.2), references.label_smoothing_row, dict(alpha=0.2)),
    'fl': (SoftmaxFocalLoss, dict(gamma=3.0), references.softmax_focal_row, dict(gamma=3.0)),
    'fl below 1': (
        SoftmaxFocalLoss,
        dict(gamma=0.5),
        references.softmax_focal_row,
        dict(gamma=0.5),
    ),
    'flsd': (
        SampleDependentFocalLoss,
        {},
        references.softmax_focal_row,
        dict(gamma=lambda p: 5.0 if p < 0.2 else 3.0),
    ),
    'flsd, own schedule': (
        SampleDependentFocalLoss,
        dict(schedule=[(0.1, 4.0), (0.6, 2.0), (1, 0.5)]),
        references.softmax_focal_row,
        dict(gamma=lambda p: 4.0 if p < 0.1 else 2.0 if p < 0.6 else 0.5),
    ),
    'ecp': (
        ConfidencePenaltyLoss,
        dict(alpha=0.4),
        references.confidence_penalty_row,
        dict(alpha=0.4),
    ),
    'ecp, sum': (
        ConfidencePenaltyLoss,
        dict(alpha=0.4, class_reduction='sum'),
        references.confidence_penalty_row,
        dict(alpha=0.4, class_reduction='sum'),
    ),
    'brier': (BrierLoss, {}, references.brier_row, {}),
    'dual focal': (DualFocalLoss, dict(gamma=2.5), references.dual_focal_row, dict(gamma=2.5)),
    'inverse focal': (
        InverseFocalLoss,
        dict(gamma=1.5),
        references.inverse_focal_row,
        dict(gamma=1.5),
    ),
    'bsce': (
        BSCELoss,
        dict(gamma=0.7, detach_weight=False),
        references.bsce_row,
        dict(gamma=0.7, norm=2),
    ),
    'bsce, norm 1': (
        BSCELoss,
        dict(gamma=2.0, norm=1, detach_weight=False),
        references.bsce_row,
        dict(gamma=2.0, norm=1),
    ),
    'cals': (
        AnyCALSLoss,
        dict(multiplier=0.5, rho=2.0, margin=3.0),
        references.cals_row,
        dict(multipliers=0.5, rho=2.0, margin=3.0),
    ),
    'acls': (
        ACLSLoss,
        dict(margin=2.0, alpha=0.3, alpha_others=0.4),
        references.acls_row,
        dict(margin=2.0, alpha=0.3, alpha_others=0.4),
    ),
    'ada focal': (
        LearntAdaFocalLoss,
        dict(gammas=[-2.0, 1.5, 0.5], edges=[0.1, 0.7]),
        references.ada_focal_row,
        dict(gammas=[-2.0, 1.5, 0.5], edges=[0.1, 0.7]),
    ),
}
every_loss = pytest.mark.parametrize('name', LOSSES)


def pairwise(first, second, names=LOSSES):
    """Return a few pairs for each loss, of which all losses together try every combination."""
    return [
        pytest.param(name, a, second[(i + j) % len(second)], id=f'{name}-{a}-{i + j}')
        for i, name in enumerate(names)
        for j, a in enumerate(first)
    ]


def takes_soft(name):
    return LOSSES[name][0].no_soft_targets is None


soft_losses = pytest.mark.parametrize('name', filter(takes_soft, LOSSES))


def build(name, **options):
    loss, own, _, _ = LOSSES[name]
    return loss(**own, **options)


def draw(shape, dtype=torch.float64, scale=4.0, ignore=False):
    generator = torch.Generator().manual_seed(0)
    logits = (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    if ignore:
        target.view(-1)[::4] = IGNORED
    return logits.requires_grad_(), target


def loop(name, logits, target, weights=None):
    """The loss of each row by the reference, in float64; 0 where ignored."""
    _, _, row, options = LOSSES[name]
    flat = logits.detach().double().movedim(1, -1).reshape(-1, logits.shape[1]).tolist()
    soft = target.is_floating_point()
    labels = (
        target.double().movedim(1, -1).reshape(-1, logits.shape[1]).tolist()
        if soft
        else target.flatten().tolist()
    )
    losses = [
        0.0 if label == IGNORED else row(values, label, weights=weights, **options)
        for values, label in zip(flat, labels, strict=True)
    ]
    return torch.tensor(losses, dtype=torch.float64).view(logits.shape[0], *logits.shape[2:])


TOLERANCE = {
    torch.float64: dict(rtol=1e-10, atol=1e-10),
    torch.float32: dict(rtol=1e-5, atol=1e-5),
    torch.bfloat16: dict(rtol=1e-5, atol=1e-5),
    torch.float16: dict(rtol=1e-5, atol=1e-5),
}


@pytest.mark.parametrize(
    ('name', 'shape', 'dtype'),
    pairwise([(7, 5), (1, 2), (2, 4, 3, 5), (3, 1000)], list(TOLERANCE)),
)
def test_value_equals_a_plain_loop(name, shape, dtype):
    logits, target = draw(shape, dtype, ignore=shape[0] > 1)
    rows = loop(name, logits, target)
    expected = {'none': rows, 'sum': rows.sum(), 'mean': rows.sum() / (target != IGNORED).sum()}
    for reduction, wanted in expected.items():
        value = build(name, reduction=reduction)(logits, target, ignore_index=IGNORED)
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(value.double(), wanted, **TOLERANCE[dtype])


@every_loss
def test_soft_targets_and_class_weights(name):
    logits, target = draw((6, 5, 2))
    soft = torch.softmax(torch.randn(6, 5, 2, dtype=torch.float64), dim=1)
    weights = [0.5, 1.0, 2.0, 0.0, 3.0]
    loss = build(name, class_weight=weights, reduction='none')
    torch.testing.assert_close(loss(logits, target), loop(name, logits, target, weights))
    if not takes_soft(name):
        with pytest.raises(ValueError, match='takes integer labels, not probabilities: it '):
            loss(logits, soft)
        return
    torch.testing.assert_close(loss(logits, soft), loop(name, logits, soft, weights))
    one_hot = F.one_hot(target, 5).movedim(-1, 1).double()
    torch.testing.assert_close(loss(logits, one_hot), loss(logits, target))


SOFT_OR_HARD = [False, True]


# Of ACLS a part is a constant to the gradient, so that differences do not show it.
DIFFERENTIABLE = [name for name in LOSSES if name != 'acls']


@pytest.mark.parametrize(
    ('name', 'shape', 'soft'), pairwise([(4, 4), (2, 3, 2, 2)], SOFT_OR_HARD, DIFFERENTIABLE)
)
def test_gradient_and_its_gradient(name, shape, soft):
    logits, target = draw(shape, scale=2.0)
    if soft and takes_soft(name):
        target = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)
    loss = build(name, class_weight=list(range(1, shape[1] + 1)))
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits, atol=1e-6)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, target), logits, atol=1e-6)


@every_loss
def test_a_gradient_penalty_is_that_of_plain_autograd(name):
    logits, target = draw((6, 5), scale=2.0, ignore=True)
    penalties = []
    for reduction in ('sum', 'none'):
        value = build(name, ignore_index=IGNORED, reduction=reduction)(logits, target).sum()
        (slope,) = torch.autograd.grad(value, logits, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), logits)[0])
    assert penalties[0].abs().max() > 0
    torch.testing.assert_close(*penalties)


@soft_losses
def test_soft_targets_and_weights_get_their_gradient(name):
    logits, _ = draw((6, 5), scale=2.0)
    teacher = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(6, dtype=torch.float64, requires_grad=True)
    gradients = []
    for reduction in ('sum', 'none'):
        rows = build(name, reduction=reduction)(logits, teacher.softmax(1), weight=weight)
        gradients.append(torch.autograd.grad(rows.sum(), (logits, teacher, weight)))
    assert all(gradient.abs().max() > 0 for gradient in gradients[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ('name', 'dtype', 'soft'),
    pairwise([torch.float32, torch.bfloat16, torch.float16], SOFT_OR_HARD),
)
def test_huge_logits_are_safe(name, dtype, soft):
    logits = (
        torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4], [0.0, 1e-4, 0.0]])
        .to(dtype)
        .requires_grad_()
    )
    target = torch.tensor([0, 0, 2, 1])
    if soft and takes_soft(name):
        target = F.one_hot(target, 3).float()
    value = build(name, reduction='none')(logits, target)
    value.sum().backward()
    assert value.isfinite().all() and logits.grad.isfinite().all()


@pytest.mark.parametrize(('name', 'reduction', 'soft'), pairwise(['none', 'sum'], SOFT_OR_HARD))
def test_a_masked_class_is_left_out(name, reduction, soft):
    logits, target = draw((6, 5), scale=2.0)
    masked = logits.detach().clone()
    masked[:4, 2] = float('-inf')
    masked.requires_grad_()
    target[target == 2] = 3
    if soft and takes_soft(name):
        target = F.one_hot(target, 5).double().mul(0.8).add(0.05)
        target[:, 2] = 0
    value = build(name, reduction=reduction)(masked, target)
    torch.testing.assert_close(value.sum(), loop(name, masked, target).sum())
    value.sum().backward()
    assert (masked.grad[:4, 2] == 0).all() and masked.grad.isfinite().all()
    others = [0, 1, 3, 4]
    (expected,) = torch.autograd.grad(build(name, reduction='none')(masked, target).sum(), masked)
    torch.testing.assert_close(masked.grad[:, others], expected[:, others])


@every_loss
@pytest.mark.parametrize('reduction', ['none', 'sum'])
def test_an_ignored_row_may_be_masked_where_its_stand_in_label_is(name, reduction):
    logits, target = draw((6, 5), scale=2.0)
    masked = logits.detach().clone()
    masked[:3, 0] = float('-inf')
    masked.requires_grad_()
    target[target == 0] = 3
    target[1] = IGNORED
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    value = build(name, reduction=reduction)(masked, target, weight=weight, ignore_index=IGNORED)
    expected = loop(name, masked, target) * weight
    torch.testing.assert_close(value, expected if reduction == 'none' else expected.sum())
    (grad,) = torch.autograd.grad(value.sum(), masked)
    assert grad.isfinite().all() and (grad[1:3] == 0).all() and (grad[3:] != 0).any()


@every_loss
def test_layouts_and_second_use_in_one_step(name):
    logits, target = draw((2, 4, 6, 6), torch.float32)
    loss = build(name)
    expected = loss(logits, target)
    (gradient,) = torch.autograd.grad(expected, logits)
    for other in (
        logits.to(memory_format=torch.channels_last),
        logits.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        assert not other.is_contiguous()
        torch.testing.assert_close(loss(other, target), expected)
    (twice,) = torch.autograd.grad(loss(logits, target) + loss(logits, target), logits)
    torch.testing.assert_close(twice, 2 * gradient)


@pytest.mark.parametrize(
    ('name', 'dtype', 'reduction'), pairwise([torch.bfloat16, torch.float16], ['mean', 'none'])
)
def test_autocast(name, dtype, reduction):
    torch.manual_seed(0)
    layer, target = torch.nn.Linear(6, 10), torch.randint(10, (64,))
    loss = build(name, reduction=reduction)
    with torch.autocast('cpu', dtype=dtype):
        logits = layer(8 * torch.randn(64, 6))
        value = loss(logits, target)
    assert logits.dtype == dtype and value.dtype == torch.float32
    expected = loop(name, logits, target).float()
    torch.testing.assert_close(value, expected if reduction == 'none' else expected.mean())


@every_loss
def test_everything_ignored(name):
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    value = build(name, ignore_index=IGNORED)(logits, torch.full((2, 4, 4), IGNORED))
    value.backward()
    assert value.item() == 0 and (logits.grad == 0).all()


@pytest.mark.parametrize('name', {loss: name for name, (loss, *_) in LOSSES.items()}.values())
def test_inside_a_compiled_model(name):
    torch.compiler.reset()  # the graphs of the other losses count towards a limit
    logits, target = draw((4, 5, 3), torch.float32, ignore=True)
    loss = build(name, ignore_index=IGNORED)
    compiled = torch.compile(loss, backend='aot_eager', fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))
    target[2, 1] = 5
    with pytest.raises(RuntimeError, match=r'outside \[0, 5\).* ignore_index=255'):
        compiled(logits, target)


@every_loss
def test_classes_permuted_and_logits_shifted(name):
    logits, target = draw((8, 5))
    loss, order = build(name), torch.tensor([3, 0, 4, 1, 2])
    expected = loss(logits, target)
    if name != 'acls':  # of which the largest logit itself is smoothed
        torch.testing.assert_close(loss(logits + 50.0, target), expected)
    torch.testing.assert_close(loss(logits[:, order], order.argsort()[target]), expected)


@pytest.mark.parametrize(
    'loss',
    [
        MarginLabelSmoothingLoss(alpha=0),
        ACLSLoss(alpha=0, alpha_others=0),
        AdaFocalLoss(gamma=0),
        LabelSmoothingLoss(alpha=0),
        SoftmaxFocalLoss(gamma=0),
        SampleDependentFocalLoss(schedule=[(1.0, 0.0)]),
        ConfidencePenaltyLoss(alpha=0),
        DualFocalLoss(gamma=0),
        InverseFocalLoss(gamma=0),
        BSCELoss(gamma=0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_the_limit_of_every_loss_is_cross_entropy(loss):
    logits, target = draw((8, 5))
    torch.testing.assert_close(loss(logits, target), F.cross_entropy(logits, target))


@pytest.mark.parametrize('loss', [DualFocalLoss, InverseFocalLoss, BSCELoss])
def test_a_detached_weight_scales_the_gradient_of_cross_entropy(loss):
    logits, target = draw((8, 5))
    rows = F.cross_entropy(logits, target, reduction='none')
    factor = (loss(gamma=2.0, reduction='none')(logits, target) / rows).detach()
    (expected,) = torch.autograd.grad((factor * rows).sum(), logits)
    for detach_weight in (True, False):
        value = loss(gamma=2.0, reduction='sum', detach_weight=detach_weight)(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.allclose(gradient, expected) == detach_weight


def test_the_gradient_of_acls():
    logits, target = draw((9, 5))
    (gradient,) = torch.autograd.grad(build('acls', reduction='sum')(logits, target), logits)
    for row, label, slopes in zip(logits.tolist(), target.tolist(), gradient.tolist(), strict=True):
        probs = torch.tensor(row, dtype=torch.float64).softmax(0).tolist()
        for k, (logit, slope) in enumerate(zip(row, slopes, strict=True)):
            expected = probs[k] - (k == label)
            if logit == max(row):
                expected += 0.3 * 2 * max(0.0, logit - 2.0)
            else:
                expected -= 0.4 * 2 * max(0.0, max(row) - logit - 2.0) / 4
            assert slope == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize('class_reduction', ['mean', 'sum'])
def test_max_suppression_is_the_margin_0(class_reduction):
    # MaxSup (Zhou et al., NeurIPS 2025) penalises how far the largest logit is above their mean.
    logits, target = draw((8, 5))
    loss = MarginLabelSmoothingLoss(margin=0.0, alpha=0.1, class_reduction=class_reduction)
    scale = 5 if class_reduction == 'sum' else 1
    penalty = scale * (logits.amax(1) - logits.mean(1)).mean()
    expected = F.cross_entropy(logits, target) + 0.1 * penalty
    torch.testing.assert_close(loss(logits, target), expected)
    gradients = [torch.autograd.grad(x, logits)[0] for x in (loss(logits, target), expected)]
    torch.testing.assert_close(*gradients)


def test_label_smoothing_is_that_of_torch():
    logits, target = draw((8, 5))
    expected = F.cross_entropy(logits, target, label_smoothing=0.1)
    torch.testing.assert_close(LabelSmoothingLoss(alpha=0.1)(logits, target), expected)


@pytest.mark.parametrize('gamma', [0.25, 0.5, 1.0, 3.0])
def test_focal_gradient_is_zero_at_probability_one(gamma):
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    SoftmaxFocalLoss(gamma=gamma)(logits, torch.tensor([0])).backward()
    assert (logits.grad == 0).all()


class TestSection4:
    """The relations between the losses that the paper states."""

    logits, target = draw((200, 7), scale=5.0)
    logits = logits.detach()
    log_probs = logits.log_softmax(1)
    kl = -math.log(7) - log_probs.mean(1)  # KL(u || s)

    def test_label_smoothing_is_cross_entropy_plus_kl(self):  # Eq. 4
        alpha = 0.05
        rows = LabelSmoothingLoss(alpha=alpha, reduction='none')(self.logits, self.target)
        cross_entropy = F.cross_entropy(self.logits, self.target, reduction='none')
        expected = cross_entropy + alpha / (1 - alpha) * (self.kl + math.log(7))
        torch.testing.assert_close(rows / (1 - alpha), expected)

    def test_proposition_1(self):
        mean_distance = margin_penalty(self.logits, 0.0)
        assert (self.kl <= mean_distance + 1e-12).all()
        assert (mean_distance <= self.kl + math.log(7) + 1e-12).all()

    @pytest.mark.parametrize('gamma', [1.0, 2.0, 3.0])
    def test_focal_loss_is_at_least_cross_entropy_less_entropy(self, gamma):  # Eq. 5
        rows = SoftmaxFocalLoss(gamma=gamma, reduction='none')(self.logits, self.target)
        cross_entropy = F.cross_entropy(self.logits, self.target, reduction='none')
        entropy = -(self.log_probs.exp() * self.log_probs).sum(1)
        assert (rows >= cross_entropy - gamma * entropy - 1e-12).all()


@pytest.mark.parametrize(
    ('loss', 'options', 'message'),
    [
        (LabelSmoothingLoss, dict(alpha=1.1), r'alpha must be in \[0, 1\], got 1\.1'),
        (LabelSmoothingLoss, dict(alpha=-0.1), r'got -0\.1'),
        (SoftmaxFocalLoss, dict(gamma=-1), 'gamma must be a finite number of at least 0, got -1'),
        (SampleDependentFocalLoss, dict(schedule=[(0.2, 5.0)]), 'must ascend to 1'),
        (SampleDependentFocalLoss, dict(schedule=[(0.5, 5), (0.2, 1), (1, 3)]), 'must ascend'),
        (SampleDependentFocalLoss, dict(schedule=[(1, -3)]), 'a gamma of schedule must be'),
        (ConfidencePenaltyLoss, dict(alpha=float('nan')), 'alpha must be'),
        (ConfidencePenaltyLoss, dict(class_reduction='max'), "got 'max'"),
        (BSCELoss, dict(norm=3), r'norm must be one of \(1, 2\), got 3'),
        (DualFocalLoss, dict(gamma=-1), 'gamma must be'),
        (ACLSLoss, dict(alpha_others=-1), 'alpha_others must be .* at least 0, got -1'),
        (AdaFocalLoss, dict(num_bins=0), 'num_bins must be an integer of at least 1, got 0'),
        (AdaFocalLoss, dict(gamma=-3.0), r'gamma must be in \[-2, 20\], got -3.0'),
        (AdaFocalLoss, dict(gamma_min=0.0), r'gamma_min must be .*, got 0.0'),
        (AdaFocalLoss, dict(gamma_max=0.1), r'gamma_max must be .*, got 0.1'),
        (CALSLoss, dict(num_classes=1), 'num_classes must be an integer of at least 2, got 1'),
        (CALSLoss, dict(num_classes=4, margin=0.0), 'margin must be .*, got 0.0'),
        (CALSLoss, dict(num_classes=4, rho=0.0), 'rho must be .*, got 0.0'),
        (CALSLoss, dict(num_classes=4, rho=2.0, rho_max=1.0), 'rho_max must be .*, got 1.0'),
        (CALSLoss, dict(num_classes=4, rho_growth=0.5), 'rho_growth must be .*, got 0.5'),
        (CALSLoss, dict(num_classes=4, rho_interval=0), 'rho_interval must be .*, got 0'),
    ],
)
def test_bad_options_are_refused(loss, options, message):
    with pytest.raises(ValueError, match=message):
        loss(**options)


def test_acls_weighs_as_its_published_loss():
    """Which is cross-entropy + 0.1 (1.0 · positive + 0.1 · negative term), with a margin of 10."""
    logits = torch.tensor([[13.0, 1.0, -1.0]])
    value = ACLSLoss()(logits, torch.tensor([0]))
    expected = F.cross_entropy(logits, torch.tensor([0])) + 0.1 * (9 + 0.1 * (4 + 16) / 2)
    torch.testing.assert_close(value, expected)
