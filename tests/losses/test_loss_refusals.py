"""What the losses refuse, and the name that the error says."""

import pytest
import torch
from mmengine.registry import MODELS

from mmcalib import losses
from mmcalib.losses import AdaFocalLoss, CALSLoss, L1ACELoss, MDCALoss, SVLSLoss

MBLS, FLSD = losses.MarginLabelSmoothingLoss, losses.SampleDependentFocalLoss
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
def test_options(kind, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MODELS.build(dict(type=kind, **options))


ZEROS = torch.zeros(4, dtype=torch.long)
SEVERAL = torch.tensor([[1.0, 1, 0], [0, 0, 0], [1, 0, -1]])
CALLS = [
    (MBLS(), (4, 3), torch.tensor([0, 1, 2, 3]), {}, r'1 labels outside \[0, 3\): 3\. '),
    (MBLS(), (4, 3), torch.tensor([0, -1, 2, 0]), {}, r': -1\. They are not ignore_index=-100'),
    (MDCALoss(), (2, 3), torch.tensor([0, 3]), {}, '1 labels outside'),
    # A narrow label does not wrap around to the ignored one.
    (MBLS(), (2, 4), torch.tensor([1, 156], dtype=torch.uint8), {}, '156'),
    (MBLS(ignore_index=255), (2, 4), torch.tensor([1, -1], dtype=torch.int8), {}, '-1'),
    (MBLS(), (4, 3), torch.tensor([0, 1]), {}, r'target \(2,\) .* does not fit pred \(4, 3\)'),
    (MBLS(), (4, 3, 2, 2), torch.zeros(4, 1, 2, 2, dtype=int), {}, r'\(4, 1, 2, 2\)'),
    (MBLS(), (4, 3), torch.zeros(4), {}, r'target \(4,\) of torch.float32'),
    (MBLS(), (4, 1), ZEROS, {}, 'out_channels=2'),
    (MBLS(), (4,), ZEROS, {}, r'got \(4,\)'),
    (MBLS(), (4, 3), ZEROS, dict(weight=torch.ones(3)), r'weight \(3,\) .* does not fit'),
    (MBLS(), (4, 3), ZEROS, dict(avg_factor=4, reduction_override='sum'), 'avg_factor'),
    (MBLS(), (4, 3), ZEROS, dict(reduction_override='max'), "got 'max'"),
    (MBLS(class_weight=[1, 2]), (4, 3), ZEROS, {}, 'class_weight for 2 classes'),
    (MDCALoss(), (4, 3), ZEROS, dict(reduction_override='none'), "got 'none'"),
    (losses.DualFocalLoss(), (4, 3), torch.full((4, 3), 1 / 3), {}, 'not probabilities'),
    (SVLSLoss(), (4, 3, 2, 2), torch.full((4, 3, 2, 2), 1 / 3), {}, 'not probabilities'),
    # Of several labels, or of one that is to be left out.
    (MBLS(), (2, 3), SEVERAL[:2], {}, r'2 of 2 .*do not sum to 1, such as 2: .*sigmoid'),
    (MBLS(), (1, 3), SEVERAL[1:2], {}, r'do not sum to 1, such as 0'),
    (MBLS(), (1, 3), SEVERAL[2:], {}, r'negative.*-1'),
    (MBLS(reduction='none'), (2, 3), SEVERAL[:2], {}, 'do not sum to 1'),
    (MBLS(), (2, 3, 2, 2), torch.ones(2, 3, 2, 2), {}, '8 of 8 .*do not sum to 1'),
    (MDCALoss(), (1, 3), torch.tensor([[1.5, -0.5, 0.0]]), {}, r'negative.*-0\.5'),
    (MBLS(), (1, 3), torch.full((1, 3), float('nan')), {}, 'nan'),
    (MBLS(), (1, 3), torch.tensor([[1.0, 1, 0]], dtype=torch.float16), {}, 'such as 2'),
]


@pytest.mark.parametrize(('loss', 'shape', 'target', 'call', 'message'), CALLS)
def test_calls(loss, shape, target, call, message):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(shape), target, **call)


def test_soft_target_of_a_row_without_weight_may_be_anything():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    target = torch.cat([torch.tensor([[0.2, 0.3, 0.5]]), SEVERAL])
    weight = torch.tensor([1.0, 0, 0, 0])
    actual = MBLS(reduction='sum')(logits, target, weight=weight)
    expected = MBLS(reduction='sum')(logits[:1], target[:1])
    torch.testing.assert_close(actual, expected)


def test_soft_target_that_is_wrong_is_refused_inside_a_compiled_model():
    loss = torch.compile(MBLS(), backend='eager', fullgraph=True)
    logits = torch.zeros(3, 3, requires_grad=True)
    loss(logits, torch.full((3, 3), 1 / 3)).backward()
    with pytest.raises(RuntimeError, match='sum to 1'):
        loss(logits, SEVERAL)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_soft_target_rounded_to_half_precision_is_taken(dtype):
    """As under autocast; of 1000 classes, smoothed."""
    target = torch.full((4, 1000), 0.1 / 1000)
    target[:, 0] += 0.9
    assert MBLS()(torch.zeros(4, 1000), target.to(dtype)).isfinite()
