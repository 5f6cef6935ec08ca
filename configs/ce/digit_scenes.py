# Cross-entropy on segmented digit scenes with a small U-Net.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/digit_scenes.py',
    '../_base_/schedules/digit_scenes.py',
]

num_threads = 1  # More threads wait for each other, and slow other programs down.
norm_cfg = dict(type='BN', requires_grad=True)

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor', mean=[0.1], std=[0.5], size=(40, 40), pad_val=0,
        seg_pad_val=255,
        # The network halves an image three times, so the scales of `--tta` are padded.
        test_cfg=dict(size_divisor=8)),
    backbone=dict(
        type='UNet',
        in_channels=1,
        base_channels=16,
        num_stages=4,
        strides=(1, 1, 1, 1),
        enc_num_convs=(2, 2, 2, 2),
        dec_num_convs=(2, 2, 2),
        downsamples=(True, True, True),
        enc_dilations=(1, 1, 1, 1),
        dec_dilations=(1, 1, 1),
        norm_cfg=norm_cfg),
    decode_head=dict(
        type='FCNHead',
        in_channels=16,
        in_index=3,
        channels=16,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0,
        num_classes=11,
        norm_cfg=norm_cfg,
        align_corners=False,
        # mmseg averages over ignored pixels unless told not to.
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
