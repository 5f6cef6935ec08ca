"""Where a temperature goes in the models that mmseg and mmpretrain ship, with random weights.

A few by default, and with ``--all-configs`` one of each combination of classes.
"""

import logging

import pytest
import stock_architectures
from commands import ROOT
from stock_architectures import architectures, attach_to, build_model, fold, smallest_batch
from stock_configs import TOOLBOXES, recorded, stock_configs

from mmcalib.posthoc.fold_into_layer import NotFoldableError

# Small models of many kinds, and the layers that take the temperature up.
FOLDED = {
    'mmpretrain/lenet/lenet5_mnist.py': ['backbone.classifier.2'],
    'mmpretrain/mobilenet_v3/mobilenet-v3-small-050_8xb128_in1k.py': ['head.layers.1.fc'],
    'mmpretrain/deit/deit-tiny-distilled_4xb256_in1k.py': [
        'head.layers.head_dist',
        'head.layers.head',
    ],
    'mmpretrain/conformer/conformer-tiny-p16_8xb128_in1k.py': [
        'head.trans_cls_head',
        'head.conv_cls_head',
    ],
    'mmseg/cgnet/cgnet_fcn_4xb4-60k_cityscapes-680x680.py': ['decode_head.conv_seg'],
    'mmseg/segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': ['decode_head.conv_seg'],
    'mmseg/mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py': [
        'decode_head.conv_seg'
    ],
}
SIGMOIDS = 'each class has a separate sigmoid'
# Those whose logits no layer scales, and why: the temperature is attached to what they predict.
NOT_FOLDED = {
    'mmpretrain/resnet/resnet50_8xb16-mixup_cifar10.py': SIGMOIDS,
    'mmseg/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py': 'halving any does not halve',  # noqa: E501
}
SLOWER_NOT_FOLDED = {
    'mmpretrain/csra/resnet101-csra_1xb16_voc07-448px.py': SIGMOIDS,
    'mmpretrain/vgg/vgg16_8xb16_voc.py': SIGMOIDS,
    'mmseg/knet/knet-s3_r50-d8_deeplabv3_8xb2-adamw-80k_ade20k-512x512.py': 'not halve',
    'mmseg/knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py': 'not halve',
    'mmseg/knet/knet-s3_r50-d8_pspnet_8xb2-adamw-80k_ade20k-512x512.py': 'not halve',
    'mmseg/knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py': 'not halve',
    'mmseg/knet/knet-s3_swin-t_upernet_8xb2-adamw-80k_ade20k-512x512.py': 'not halve',
}


@pytest.fixture(autouse=True)
def few_lines():
    """Their init_weights logs a line per parameter."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption('all_configs')
    if metafunc.function is test_what_folds:
        known = FOLDED | (recorded_layers() if every else {})
        metafunc.parametrize(('name', 'layers'), known.items(), ids=list(known))
    elif metafunc.function is test_what_does_not_fold:
        known = NOT_FOLDED | (SLOWER_NOT_FOLDED if every else {})
        metafunc.parametrize(('name', 'reason'), known.items(), ids=list(known))


def recorded_layers():
    rows = {f'{t}/{row["label"]}': row for t in TOOLBOXES for row in recorded('architectures', t)}
    return {name: row['folded'] for name, row in rows.items() if row['folded']}


def of(name):
    """Return model and batch of ``toolbox/config``."""
    toolbox, config = name.split('/', 1)
    model = build_model(toolbox, config)
    return model, smallest_batch(model, toolbox)


def test_what_folds(name, layers):
    assert fold(*of(name)) == layers


def test_what_does_not_fold(name, reason):
    model, batch = of(name)
    with pytest.raises(NotFoldableError, match=reason):
        fold(model, batch)
    attach_to(model, batch)


def test_a_layer_that_is_not_folded_whole_is_found_out(monkeypatch):
    """Without the bias, say, the logits are not the scaled ones."""
    model, batch = of('mmpretrain/lenet/lenet5_mnist.py')
    whole = stock_architectures.fold_layers

    def without_bias(*arguments):
        return {k: v for k, v in whole(*arguments).items() if not k.endswith('bias')}

    monkeypatch.setattr(stock_architectures, 'fold_layers', without_bias)
    with pytest.raises(ValueError, match='folded probabilities differ from scaled ones'):
        fold(model, batch)


@pytest.mark.parametrize('toolbox', TOOLBOXES)
def test_the_record_has_all_that_run(toolbox, request):
    """Each recorded architecture folds, is one of those above, or cannot run."""
    rows = recorded('architectures', toolbox)
    known = NOT_FOLDED | SLOWER_NOT_FOLDED
    left = [f'{toolbox}/{row["label"]}' for row in rows if row['attached']]
    assert sorted(left) == sorted(name for name in known if name.split('/')[0] == toolbox)
    assert not [row for row in rows if row['runs'] and not (row['folded'] or row['attached'])]
    assert all(row['reason'] for row in rows if not row['folded'])
    if request.config.getoption('all_configs'):
        divided = recorded('configs', toolbox)
        refused = {c for row in divided if not row['division'] for c in row['configs']}
        taken = [config for config in stock_configs(toolbox) if config not in refused]
        groups = architectures(toolbox, taken)
        assert {row['label']: row['count'] for row in rows} == {
            config: len(group) for config, group in groups.items()
        }


def test_the_page_has_the_numbers_of_the_record():
    page = (ROOT / 'docs/results/stock_configs.md').read_text('utf-8')
    kinds = {
        'folded into': lambda row: row['folded'],
        'attached:': lambda row: row['attached'],
        'predict no classes': lambda row: 'predicts no classes' in (row['reason'] or ''),
        'not tried': lambda row: (
            not row['runs'] and 'predicts no classes' not in (row['reason'] or '')
        ),
    }
    tables = [recorded('architectures', toolbox) for toolbox in TOOLBOXES]
    for words, is_one in kinds.items():
        found = [[row['count'] for row in rows if is_one(row)] for rows in tables]
        cells = [f'{len(counts)} ({sum(counts)})' if counts else '' for counts in found]
        (line,) = (line for line in page.split('\n') if line.startswith(f'| {words}'))
        assert [cell.strip() for cell in line.split('|')[2:4]] == cells
    assert f'among the {sum(row["count"] for rows in tables for row in rows):,}' in page
