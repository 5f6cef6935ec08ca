# PASCAL VOC 2012 segmentation: the original 1,464 training and 1,449 validation images.
# Batch 8 as in the paper: 2 images on each of 4 GPUs; `--auto-scale-lr` for another number.
# Linked or unpacked as data/VOCdevkit/VOC2012; else set the three `data_root`s.
dataset_type = 'PascalVOCDataset'
data_root = 'data/VOCdevkit/VOC2012'
data_prefix = dict(img_path='JPEGImages', seg_map_path='SegmentationClass')

# The text names a crop of 512, flips, and changes of brightness and contrast; that the longest side
# is first brought to 640 is from the published code. Smaller images are padded by the preprocessor.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=(640, 640), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512)),
    dict(type='RandomFlip', prob=0.5),
    # hue_delta=1 draws -1 or 0 of 180 steps, the least that mmseg's transform allows.
    dict(type='PhotoMetricDistortion', saturation_range=(1, 1), hue_delta=1),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(640, 640), keep_ratio=True),
    # After Resize, so that the labels keep the size at which mmseg evaluates.
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file='ImageSets/Segmentation/train.txt',
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=data_prefix,
        ann_file='ImageSets/Segmentation/val.txt',
        pipeline=test_pipeline))
# The paper has no third split either: the test is the best checkpoint on the validation images.
test_dataloader = val_dataloader

# `tools/test.py CONFIG CHECKPOINT --evaluation paper`: the only one whose figures may stand beside
# the paper's. Longest side 480, padded to a square whose padding does not count, mIoU without the
# background, ECE and AECE of the foreground in batches of 8 images. The text is silent on this;
# it is what the published code does.
evaluations = dict(
    paper=dict(
        model=dict(data_preprocessor=dict(test_cfg=dict(size=(480, 480)))),
        test_dataloader=dict(
            dataset=dict(
                pipeline=[
                    dict(type='LoadImageFromFile'),
                    dict(type='LoadAnnotations'),
                    dict(type='Resize', scale=(480, 480), keep_ratio=True),
                    dict(type='AtInputSize'),
                    dict(type='PackSegInputs'),
                ])),
        test_evaluator=[
            dict(type='ForegroundIoU'),
            dict(type='CalibrationMetric', metrics=['ECE', 'AECE'], protocol='paper'),
        ]),
    # Without the option: labels at their own size, the background included, all pixels together.
    mmseg=dict())
