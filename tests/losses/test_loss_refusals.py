"""Errors of the losses for invalid options, calls, formulas and files of class weights."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loss_cases import CASES, draw
from mmengine.registry import MODELS

from mmcalib import losses
from mmcalib.losses import AdaFocalLoss, CALSLoss, L1ACELoss, MDCALoss, SVLSLoss
from mmcalib.losses.upsampled import upsampled_loss

MBLS = losses.MarginLabelSmoothingLoss
FLSD = losses.SampleDependentFocalLoss
OPTIONS = [
    (MBLS, dict(margin=-0.1), 'margin must be a finite number of at least 0, got -0.1'),
    (MBLS, dict(margin=True), 'margin must be a number, got True'),
    (MBLS, dict(class_reduction='none'), "class_reduction must be one of .* got 'none'"),
    (MBLS, dict(smoothing=0.1), 'smoothing'),
    (MBLS, dict(reduction='max'), "got 'max'"),
    (MBLS, dict(loss_name='mbls'), 'must contain "loss".*got \'mbls\''),
    (MBLS, dict(class_weight=[1.0, -1.0]), 'class_weight'),
    (MBLS, dict(ignore_index=None), 'ignore_index must be an integer.*got None'),
    (MBLS, dict(compile='yes'), "compile must be .* got 'yes'"),
    (losses.LabelSmoothingLoss, dict(alpha=1.1), r'alpha must be in \[0, 1\], got 1\.1'),
    (FLSD, dict(schedule=[(0.2, 5.0)]), 'must ascend to 1'),
    (FLSD, dict(schedule=[(1, -3)]), 'a gamma of schedule must be'),
    (AdaFocalLoss, dict(gamma=-3.0), r'gamma must be in \[-2, 20\], got -3.0'),
    (CALSLoss, dict(num_classes=1), 'num_classes must be an integer of at least 2, got 1'),
    (CALSLoss, dict(num_classes=4, margin=0.0), 'margin must be .*, got 0.0'),
    (CALSLoss, dict(num_classes=4, rho=2.0, rho_max=1.0), 'rho_max must be .*, got 1.0'),
    (losses.NACLLoss, dict(kernel_size=4), 'kernel_size must be .* got 4'),
    (MDCALoss, dict(reduction='sum'), "reduction must be .* got 'sum'"),
    (MDCALoss, dict(class_weight=[1, 2]), 'has no class_weight'),
    (L1ACELoss, dict(compile=True), 'no compile'),
    (L1ACELoss, dict(share_statistics=True), 'set per_image=False'),
    (losses.CombinedLoss, dict(losses=[MDCALoss()], loss_name='sum'), 'must contain "loss"'),
    (
        losses.CombinedLoss,
        dict(losses=[losses.SoftmaxFocalLoss(reduction='none'), MDCALoss()]),
        "none must have reduction='none'",
    ),
]


@pytest.mark.parametrize(('kind', 'options', 'message'), OPTIONS)
def test_loss_invalid_option_raises(kind, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MODELS.build(dict(type=kind, **options))


ZEROS = torch.zeros(4, dtype=torch.long)
SEVERAL_LABELS = torch.tensor([[1.0, 1, 0], [0, 0, 0], [1, 0, -1]])
CALLS = [
    (MBLS(), (4, 3), torch.tensor([0, 1, 2, 3]), r'1 labels outside \[0, 3\): 3\. '),
    (MDCALoss(), (2, 3), torch.tensor([0, 3]), '1 labels outside'),
    # A narrow label does not wrap around to the ignored one.
    (MBLS(), (2, 4), torch.tensor([1, 156], dtype=torch.uint8), '156'),
    (MBLS(ignore_index=255), (2, 4), torch.tensor([1, -1], dtype=torch.int8), '-1'),
    (MBLS(), (4, 3), torch.tensor([0, 1]), r'target \(2,\) .* does not fit pred \(4, 3\)'),
    (MBLS(), (4, 3), torch.zeros(4), r'target \(4,\) of torch.float32'),
    (MBLS(), (4,), ZEROS, r'got \(4,\)'),
    (partial(MBLS(), weight=torch.ones(3)), (4, 3), ZEROS, r'weight \(3,\) .* does not fit'),
    (partial(MBLS(), avg_factor=4, reduction_override='sum'), (4, 3), ZEROS, 'avg_factor'),
    (partial(MBLS(), avg_factor=torch.ones(4)), (4, 3), ZEROS, r'avg_factor .* shape \(4,\)'),
    (partial(MBLS(), reduction_override='max'), (4, 3), ZEROS, "got 'max'"),
    (MBLS(class_weight=[1, 2]), (4, 3), ZEROS, 'class_weight has 2 weights for 3'),
    (partial(MDCALoss(), reduction_override='none'), (4, 3), ZEROS, "got 'none'"),
    (losses.DualFocalLoss(), (4, 3), torch.full((4, 3), 1 / 3), 'not probabilities'),
    (SVLSLoss(), (4, 3, 2, 2), torch.full((4, 3, 2, 2), 1 / 3), 'not probabilities'),
    *(
        (loss, shape, torch.zeros(shape[:1] + shape[2:], dtype=int), r'\(N, K, H, W\); got')
        for loss in (SVLSLoss(), losses.NACLLoss())
        for shape in ((4, 3), (4, 3, 7))
    ),
    # Soft targets of several labels, or of a label that should be ignored.
    (MBLS(), (2, 3), SEVERAL_LABELS[:2], r'2 of 2 .*do not sum to 1, such as 2: .*sigmoid'),
    (MBLS(), (1, 3), SEVERAL_LABELS[1:2], r'do not sum to 1, such as 0'),
    (MBLS(), (1, 3), SEVERAL_LABELS[2:], r'negative.*-1'),
    (MBLS(reduction='none'), (2, 3), SEVERAL_LABELS[:2], 'do not sum to 1'),
    (MBLS(), (2, 3, 2, 2), torch.ones(2, 3, 2, 2), '8 of 8 .*do not sum to 1'),
    (MDCALoss(), (1, 3), torch.tensor([[1.5, -0.5, 0.0]]), r'negative.*-0\.5'),
    (MBLS(), (1, 3), torch.full((1, 3), float('nan')), 'nan'),
    (MBLS(), (1, 3), torch.tensor([[1.0, 1, 0]], dtype=torch.float16), 'such as 2'),
]

REMEDIES = [
    (torch.zeros(4, 3), ZEROS.numpy(), r'torch\.as_tensor\(target\)'),
    (np.zeros((4, 3)), ZEROS, r'torch\.as_tensor\(pred\)'),
    (torch.zeros(2, 7, 3), torch.zeros(2, 7, dtype=int), r'pred\.movedim\(-1, 1\)'),
    (SimpleNamespace(logits=torch.zeros(4, 3)), ZEROS, r'give pred\.logits'),
    ({'out': torch.zeros(4, 3), 'aux': torch.zeros(4, 3)}, ZEROS, 'one of its entries out, aux'),
]


@pytest.mark.parametrize(('pred', 'target', 'remedy'), REMEDIES)
def test_target_that_does_not_fit_is_told_a_remedy(pred, target, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy):
        MBLS()(pred, target)


@pytest.mark.parametrize(('loss', 'shape', 'target', 'message'), CALLS)
def test_loss_invalid_call_raises(loss, shape, target, message):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(shape), target)


def test_loss_unknown_argument_of_a_trainer_is_told_the_call():
    """The Trainer of transformers calls a loss like this."""
    for loss in (MBLS(), losses.CombinedLoss([MBLS(), MDCALoss()])):
        output = SimpleNamespace(logits=torch.randn(4, 3))
        with pytest.raises(TypeError, match='num_items_in_batch') as error:
            loss(output, ZEROS, num_items_in_batch=torch.tensor(8))
        call = str(error.value).partition('compute_loss_func=')[2]
        compute_loss = eval(call, {'loss': loss})
        actual = compute_loss(output, ZEROS, num_items_in_batch=torch.tensor(8))
        torch.testing.assert_close(actual, loss(output.logits, ZEROS, avg_factor=8))


@pytest.mark.parametrize('name', CASES)
def test_loss_of_probabilities_raises(name):
    logits, target = draw(CASES[name].shapes[0])
    loss = CASES[name].build()
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(ValueError, match=r'pred .*probabilities.*takes logits: .*softmax'):
            loss(logits.softmax(dim=1).to(dtype), target)
    loss(logits, target)


def test_loss_of_probabilities_of_small_maps_raises():
    probs = torch.randn(2, 3, 4, 4).softmax(dim=1)
    target = torch.zeros(2, 8, 8, dtype=torch.long)
    with pytest.raises(ValueError, match='probabilities'):
        upsampled_loss(MBLS(), probs, target, ignore_index=255, align_corners=False)


def test_loss_of_logits_that_sum_to_1_by_chance_is_finite():
    """A few rows prove nothing, and a loss that has seen logits asks no more."""
    target = torch.tensor([0, 1, 2, 0, 1])
    probs = F.one_hot(target, 3).float()
    loss = MBLS()
    assert loss(probs[:3], target[:3]).isfinite()
    loss(torch.randn(5, 3), target)
    assert loss(probs, target).isfinite()


def test_loss_class_axis_that_no_shape_tells_raises():
    """Logits (N, T, K) of tokens with T = K would be read with their axes exchanged."""
    torch.manual_seed(0)
    logits = torch.randn(4, 7, 7)
    target = torch.randint(7, (4, 7))
    loss = MBLS(margin=1.0)
    with pytest.raises(ValueError, match='nobody knows which axis of pred') as error:
        loss(logits, target)
    for remedy in ('target[..., None]', 'pred[..., None]', 'pred.movedim(-1, 1)[..., None]'):
        assert f' {remedy}' in str(error.value)
    first = loss(logits[..., None], target[..., None])
    last = loss(logits.movedim(-1, 1)[..., None], target[..., None])
    torch.testing.assert_close(last, loss(torch.cat([*logits]), target.flatten()))
    # The axes of an earlier call are known, so those of sequences of all lengths are.
    assert torch.equal(loss(logits, target), first)


@pytest.mark.parametrize(
    ('target', 'message'),
    [(torch.tensor([0, 3]), '1 labels outside'), (torch.ones(2, 3), 'do not sum to 1')],
)
def test_loss_invalid_target_inside_func_grad_raises(target, message):
    with pytest.raises(ValueError, match=message):
        torch.func.grad(MBLS())(torch.zeros(2, 3), target)


def test_loss_invalid_soft_target_of_row_without_weight_changes_nothing():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    target = torch.cat([torch.tensor([[0.2, 0.3, 0.5]]), SEVERAL_LABELS])
    weight = torch.tensor([1.0, 0, 0, 0])
    actual = MBLS(reduction='sum')(logits, target, weight=weight)
    expected = MBLS(reduction='sum')(logits[:1], target[:1])
    torch.testing.assert_close(actual, expected)


def test_loss_invalid_soft_target_inside_compiled_model_raises():
    loss = torch.compile(MBLS(), backend='eager', fullgraph=True)
    logits = torch.zeros(3, 3, requires_grad=True)
    loss(logits, torch.full((3, 3), 1 / 3)).backward()
    with pytest.raises(RuntimeError, match='sum to 1'):
        loss(logits, SEVERAL_LABELS)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_loss_soft_target_in_half_precision_is_finite(dtype):
    """Autocast rounds the smoothed targets of 1,000 classes."""
    target = torch.full((4, 1000), 0.1 / 1000)
    target[:, 0] += 0.9
    assert MBLS()(torch.zeros(4, 1000), target.to(dtype)).isfinite()


def poly(logits, target, *, epsilon=1.0, class_weight=None):
    rows = F.cross_entropy(logits, target, weight=class_weight, reduction='none')
    return rows + epsilon * (1 - logits.softmax(dim=1).gather(1, target[:, None])[:, 0])


def other_logits(target, *, epsilon=1.0, class_weight=None):
    return target


@pytest.mark.parametrize('formula', [poly, staticmethod(other_logits), None, 'poly'])
@pytest.mark.parametrize('base', [losses.CalibrationLoss, losses.SoftmaxFocalLoss])
def test_loss_class_invalid_formula_raises(formula, base):
    with pytest.raises(TypeError, match=r'PolyLoss.*formula = staticmethod'):
        type('PolyLoss', (base,), {'formula': formula, 'loss_name': 'loss_poly'})


def test_loss_class_static_function_or_method_equals_formula():
    def method(self, logits, target, *, epsilon=1.0, class_weight=None):
        return poly(logits, target, epsilon=epsilon, class_weight=class_weight)

    logits = torch.randn(4, 3)
    target = torch.tensor([0, 1, 2, 0])
    expected = poly(logits, target, epsilon=2.0).mean()
    for formula in (staticmethod(poly), method):
        kind = type('PolyLoss', (losses.CalibrationLoss,), {'formula': formula})
        torch.testing.assert_close(kind(epsilon=2.0)(logits, target), expected)


def test_class_weight_file_or_array_equals_list(tmp_path):
    from mmseg.models.losses.utils import get_class_weight

    weights = [0.5, 2.0, 1.0]
    (tmp_path / 'weights.json').write_text(json.dumps(weights))
    np.save(tmp_path / 'weights.npy', np.array(weights, dtype=np.float32))
    logits = torch.randn(4, 3)
    target = torch.tensor([0, 1, 2, 0])
    expected = MBLS(class_weight=weights)(logits, target)
    for name in ('weights.json', 'weights.npy'):
        path = str(tmp_path / name)
        assert [*get_class_weight(path)] == weights
        assert torch.equal(MBLS(class_weight=path)(logits, target), expected)
    for class_weight in (np.array(weights), torch.tensor(weights), tuple(weights)):
        assert torch.equal(MBLS(class_weight=class_weight)(logits, target), expected)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('none.json', None, 'class_weight.*there is no file .*none.json'),
        ('a.json', '[1, 2', 'class_weight.*a.json'),
        ('a.json', '{"a": 1}', 'class_weight.*a.json.* list of numbers'),
        ('a.json', '[[1], [2]]', 'class_weight'),
        ('a.json', '[1, -2]', 'class_weight must be .*-2'),
        ('a.pkl', 'x', r'class_weight.*a.pkl.*\.json or \.npy'),
        ('a.npy', 'x', 'class_weight.*a.npy'),
    ],
)
def test_class_weight_invalid_file_raises(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((TypeError, ValueError), match=message):
        MBLS(class_weight=str(tmp_path / name))
