"""Losses that look at the neighbours of a pixel in the map of labels."""

import pytest
import references
import torch
import torch.nn.functional as F

from mmcalib.losses import NACLLoss, SVLSLoss
from mmcalib.losses.base import value_and_gradient as module
from mmcalib.losses.base.label_neighbourhood import gaussian_kernel, neighbourhood_shares

IGNORED = 255
K = 4


def draw(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, K, 5, 6, generator=generator, dtype=torch.float64)
    target = torch.randint(K, (2, 5, 6), generator=generator)
    target[0, 1:3, 2:5] = IGNORED
    target[1, 0] = IGNORED
    return logits.to(dtype).requires_grad_(), target


def svls_kernel(sigma):
    kernel = [
        [2.718281828459045 ** (-(dx * dx + dy * dy) / (2 * sigma**2)) for dx in (-1, 0, 1)]
        for dy in (-1, 0, 1)
    ]
    kernel[1][1] = sum(map(sum, kernel)) - 1.0
    return kernel


def loop(name, logits, target, **options):
    """The loss of each pixel by the definitions, 0 where ignored."""
    size = options.get('kernel_size', 3)
    kernel = svls_kernel(options['sigma']) if name == 'svls' else [[1.0] * size] * size
    result = torch.zeros(target.shape, dtype=torch.float64)
    for image, labels in enumerate(target.tolist()):
        shares = references.neighbourhood_shares(labels, K, kernel, IGNORED)
        for y, row in enumerate(labels):
            for x, label in enumerate(row):
                if label == IGNORED:
                    continue
                values = logits[image, :, y, x].tolist()
                if name == 'svls':
                    loss = references.label_smoothing_row(values, shares[y][x], alpha=0.0)
                else:
                    loss = references.label_smoothing_row(values, label, alpha=0.0)
                    distances = [abs(t - v) for t, v in zip(shares[y][x], values, strict=True)]
                    loss += options['alpha'] * sum(distances) / K
                result[image, y, x] = loss
    return result


LOSSES = {
    'svls': (SVLSLoss, dict(sigma=0.8)),
    'nacl': (NACLLoss, dict(alpha=0.3)),
    'nacl, wide': (NACLLoss, dict(alpha=0.3, kernel_size=5)),
}
every_loss = pytest.mark.parametrize('name', LOSSES)


def build(name, **options):
    loss, own = LOSSES[name]
    return loss(**own, ignore_index=IGNORED, **options)


@every_loss
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16], ids=str)
def test_value_equals_a_plain_loop(name, dtype):
    logits, target = draw(dtype)
    rows = loop(name.split(',')[0], logits, target, **LOSSES[name][1])
    expected = {'none': rows, 'sum': rows.sum(), 'mean': rows.sum() / (target != IGNORED).sum()}
    for reduction, wanted in expected.items():
        value = build(name, reduction=reduction)(logits, target)
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)


@every_loss
@pytest.mark.parametrize('piece', [13, 45, 1 << 19])
def test_gradient_in_pieces(name, piece, monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', piece)
    logits, target = draw()
    weights = [0.5, 1.0, 2.0, 3.0]
    gradients = []
    for reduction in ('sum', 'none'):
        value = build(name, reduction=reduction, class_weight=weights)(logits, target).sum()
        gradients.append(torch.autograd.grad(value, logits)[0])
    torch.testing.assert_close(*gradients)


@every_loss
def test_gradient_and_its_gradient(name):
    logits, target = (x.detach()[:1, ..., :4, :4] for x in draw())
    logits.requires_grad_()
    loss = build(name)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits, atol=1e-6)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, target), logits, atol=1e-6)


@every_loss
def test_ignored_pixels_change_nothing(name):
    logits, target = draw()
    other = torch.where(target.unsqueeze(1) == IGNORED, 50.0, logits)
    torch.testing.assert_close(build(name)(other, target), build(name)(logits, target))


@every_loss
def test_everything_ignored(name):
    logits, target = draw()
    value = build(name)(logits, torch.full_like(target, IGNORED))
    value.backward()
    assert value.item() == 0 and (logits.grad == 0).all()


@pytest.mark.parametrize('name', ['svls', 'nacl'])
@pytest.mark.parametrize('compiler', ['model', 'kernel'])
def test_compiled(name, compiler, monkeypatch):
    torch.compiler.reset()
    logits, target = draw(torch.float32)
    expected = build(name)(logits, target)
    if compiler == 'model':
        loss = torch.compile(build(name), backend='aot_eager', fullgraph=True)
    else:
        real = torch.compile
        monkeypatch.setattr(torch, 'compile', lambda f, options: real(f, backend='aot_eager'))
        loss = build(name, compile=True)
    gradients = [
        torch.autograd.grad(value, logits)[0] for value in (loss(logits, target), expected)
    ]
    torch.testing.assert_close(*gradients)


@every_loss
def test_what_has_no_neighbours_is_refused(name):
    with pytest.raises(ValueError, match=r'needs label maps \(N, H, W\), got \(4,\)'):
        build(name)(torch.zeros(4, 3), torch.zeros(4, dtype=int))
    with pytest.raises(ValueError, match='takes integer labels, not probabilities'):
        build(name)(torch.zeros(1, 3, 2, 2), torch.full((1, 3, 2, 2), 1 / 3))


def test_shares_are_the_whole_of_what_is_known():
    _, target = draw()
    valid = target != IGNORED
    labels = target.masked_fill(~valid, 0)
    kernel = gaussian_kernel(3, 1.0, dtype=torch.float64)
    shares = neighbourhood_shares(labels, valid, K, kernel)
    torch.testing.assert_close(
        shares.sum(1)[valid], torch.ones(int(valid.sum()), dtype=torch.float64)
    )
    for image in range(2):
        expected = references.neighbourhood_shares(
            target[image].tolist(), K, kernel.tolist(), IGNORED
        )
        torch.testing.assert_close(
            shares[image].movedim(0, -1)[valid[image]],
            torch.tensor(expected, dtype=torch.float64)[valid[image]],
        )


def test_autocast_does_not_round_the_shares():
    labels, valid = torch.zeros(1, 4, 4, dtype=torch.long), torch.ones(1, 4, 4, dtype=torch.bool)
    labels[0, 0, 0] = 1
    for loss in (SVLSLoss(sigma=0.8), NACLLoss()):
        expected = loss.look_around(labels, valid, 3, torch.float32)
        with torch.autocast('cpu', torch.bfloat16):
            shares = loss.look_around(labels, valid, 3, torch.float32)
        torch.testing.assert_close(shares, expected, rtol=0, atol=0)


def test_inside_an_object_svls_is_cross_entropy():
    logits = torch.randn(1, K, 6, 6)
    target = torch.full((1, 6, 6), 2)
    torch.testing.assert_close(SVLSLoss()(logits, target), F.cross_entropy(logits, target))


def test_the_own_label_keeps_half_of_svls():
    # Sides and corners weigh 0.6065 and 0.3679 at sigma 1, 3.8976 together, as much as the middle.
    target = torch.zeros(1, 3, 3, dtype=int)
    target[0, 1, 1] = 1
    smoothed, _ = SVLSLoss().look_around(target, target >= 0, 2, torch.float64)
    assert smoothed[0, 1, 1, 1].item() == pytest.approx(0.5)
    # In a corner of the image there are two sides and one corner fewer.
    known = 3.8976 + 2 * 0.6065 + 0.3679
    assert smoothed[0, 1, 0, 0].item() == pytest.approx(0.3679 / known, rel=1e-3)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match='kernel_size must be odd, got 4'):
        NACLLoss(kernel_size=4)
    with pytest.raises(ValueError, match='alpha must be'):
        NACLLoss(alpha=-1)
    with pytest.raises(ValueError, match='sigma must be'):
        SVLSLoss(sigma=0)
