"""The configs that how-tos print can be read, and their heads compute a loss."""

import re

import pytest
import torch
from commands import ROOT
from mmengine.evaluator import Evaluator
from mmengine.registry import HOOKS, MODELS, init_default_scope

from mmcalib.losses import CalibrationLoss, CombinedLoss
from mmcalib.runs.config import load_config
from mmcalib.runs.misspelt_options import check_constructors

SIZE = 8


def configs_of(page):
    """Return the code blocks of a page that inherit a config of a toolbox."""
    text = (ROOT / 'docs' / page).read_text('utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    return [block for block in blocks if re.search(r"^_base_ = 'mm(seg|pretrain)::", block, re.M)]


PAGES = ['howto/auxiliary_heads.md', 'howto/choose_a_margin.md', 'howto/cityscapes_on_4_gpus.md']
CONFIGS = [
    pytest.param(block, id=f'{page}-{number}')
    for page in PAGES
    for number, block in enumerate(configs_of(page))
]


def segmentation_losses(head):
    """Return the losses of a decode head, and the logits, drawn at random, that they are of."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    labels = torch.randint(head.num_classes, (1, SIZE, SIZE))
    labels[..., 0] = 255
    sample = SegDataSample()
    sample.set_data({'gt_sem_seg': PixelData(data=labels)})
    logits = torch.randn(1, head.num_classes, SIZE // 2, SIZE // 2, requires_grad=True)
    pair = type(head).__name__ == 'DDRHead'
    losses = head.loss_by_feat((logits, logits) if pair else logits, [sample])
    return {key: value for key, value in losses.items() if 'loss' in key}, logits


@pytest.mark.parametrize('text', CONFIGS)
def test_config_of_a_page(text, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / 'own.py'
    path.write_text(text, encoding='utf-8')
    cfg = load_config(str(path))
    check_constructors(cfg)
    init_default_scope(cfg.default_scope)
    keys = [key for key in ('head', 'decode_head', 'auxiliary_head') if key in cfg.model]
    ours = []
    for key in keys:
        settings = cfg.model[key]
        if 'norm_cfg' in settings:
            settings.norm_cfg.type = 'BN'
        head = MODELS.build(settings)
        ours += [m for m in head.modules() if isinstance(m, (CalibrationLoss, CombinedLoss))]
        if key == 'head':
            logits = torch.randn(3, head.num_classes, requires_grad=True)
            losses = {'loss': head.loss_module(logits, torch.tensor([0, 1, 2]))}
        else:
            losses, logits = segmentation_losses(head)
        total = sum(losses.values())
        total.backward()
        assert total.isfinite() and logits.grad.abs().sum() > 0
    assert ours or 'avg_non_ignore' in text
    for hook in cfg.get('custom_hooks') or []:
        HOOKS.build(hook)
    if 'CalibrationMetric' in text:
        Evaluator(cfg.val_evaluator)


def test_the_pages_have_configs():
    assert [len(configs_of(page)) for page in PAGES] == [7, 1, 3]
