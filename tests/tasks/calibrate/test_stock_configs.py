"""How tools/calibrate.py divides the images of the configs that mmseg and mmpretrain ship.

It is asked up to where it needs data and weights: of a sample, and of all with ``--all-configs``.
"""

import pytest
from commands import ROOT
from stock_configs import (
    APART,
    CROSS_FITTED,
    TOOLBOXES,
    calibration_tool,
    config_folder,
    division,
    recorded,
    stock_configs,
)

SAMPLE = 60  # every so many configs
KNOWN = {
    'mmseg': {
        'pspnet/pspnet_r101-d8_4xb2-40k_cityscapes-512x1024_night-driving-1920x1080.py': APART,
        'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024_dark-zurich-1920x1080.py': APART,
        'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': CROSS_FITTED,
        'pspnet/pspnet_r50-d8_4xb4-20k_voc12aug-512x512.py': CROSS_FITTED,
    },
    'mmpretrain': {
        'resnet/resnet50_8xb16_cifar10.py': CROSS_FITTED,
        'resnet/resnet50_8xb32_in1k.py': CROSS_FITTED,
        'lenet/lenet5_mnist.py': CROSS_FITTED,
        'mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py': 'the config has no val_dataloader',
        'clip/clip_vit-base-p16_zeroshot-cls_in1k.py': 'the config has no val_dataloader',
        'replknet/replknet-31B_32xb64_in1k.py': 'cannot be read',
        'swin_transformer_v2/swinv2-base-w12_8xb128_in21k-192px.py': "'test_pipeline'",
    },
}


@pytest.fixture(scope='module')
def tool():
    with calibration_tool() as names:
        yield names


@pytest.mark.parametrize('toolbox', TOOLBOXES)
def test_known_divisions(toolbox, tool):
    for config, expected in KNOWN[toolbox].items():
        how, reason = division(tool, toolbox, config)
        assert how == expected or (not how and expected in reason), config


@pytest.mark.parametrize('toolbox', TOOLBOXES)
def test_divisions_are_as_recorded(toolbox, tool, request):
    rows = recorded('configs', toolbox)
    expected = {config: row['division'] for row in rows for config in row['configs'] or ()}
    (others,) = (row['division'] for row in rows if row['configs'] is None)
    every = request.config.getoption('all_configs')
    configs = stock_configs(toolbox)[:: 1 if every else SAMPLE]
    found = {config: division(tool, toolbox, config)[0] for config in configs}
    assert found == {config: expected.get(config, others) for config in configs}
    if every:
        assert len(configs) == sum(row['count'] for row in rows)


def test_a_config_of_other_validation_data_is_not_cross_fitted(tool, tmp_path):
    """Of the same config, which says that the above can tell them apart."""
    path = config_folder('mmseg') / 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    own = tmp_path / 'own.py'
    images = "dict(img_path='leftImg8bit/minival', seg_map_path='gtFine/minival')"
    own.write_text(f"_base_ = '{path}'\nval_dataloader = dict(dataset=dict(data_prefix={images}))")
    assert division(tool, 'mmseg', path)[0] == CROSS_FITTED
    assert division(tool, 'mmseg', own)[0] == APART


def test_the_page_has_the_numbers_of_the_record():
    page = (ROOT / 'docs/results/stock_configs.md').read_text('utf-8')
    tables = [recorded('configs', toolbox) for toolbox in TOOLBOXES]
    kinds = {
        'separate validation data': lambda row: row['division'] == APART,
        'the same data for validation and test': lambda row: row['division'] == CROSS_FITTED,
        'refused: no validation': lambda row: 'no val_dataloader' in row['label'],
        'refused: a package': lambda row: any(
            word in row['label'] for word in ('requires', 'installed', 'Failed to import')
        ),
        'refused: mmengine': lambda row: 'cannot be read' in row['label'],
    }
    for words, is_one in kinds.items():
        counts = [sum(row['count'] for row in rows if is_one(row)) for rows in tables]
        (line,) = (line for line in page.split('\n') if line.startswith(f'| {words}'))
        assert [int(cell.strip() or 0) for cell in line.split('|')[2:4]] == counts
    everything = sum(row['count'] for rows in tables for row in rows)
    assert f'all {everything:,} configs' in page
    assert all(sum(is_one(row) for is_one in kinds.values()) == 1 for t in tables for row in t)
