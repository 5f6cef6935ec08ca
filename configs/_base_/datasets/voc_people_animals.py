# Photographs of people and animals of PASCAL VOC 2012: `train` and `val`, which chooses the
# checkpoint, out of the augmented training set, `test` out of the official validation set. The
# lists are in voc_people_animals/ here; copy them to ImageSets/people_animals/ of your VOC2012.
# Seven of the classes train; mmseg ignores the pixels of the others.
dataset_type = 'PascalVOCDataset'
data_root = 'data/VOCdevkit/VOC2012'
metainfo = dict(
    classes=('background', 'cat', 'cow', 'dog', 'horse', 'person', 'sheep'),
    palette=[[0, 0, 0], [64, 0, 0], [64, 128, 0], [64, 0, 128], [192, 0, 128], [192, 128, 128],
             [128, 64, 0]])

# A little less than half the size of the photographs, for a CPU.
size = (224, 224)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=size, ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(160, 160), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=size, keep_ratio=True),
    # After Resize, so that the labels keep the size at which mmseg evaluates.
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]

dataset = dict(
    type=dataset_type,
    data_root=data_root,
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
    metainfo=metainfo)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **dataset, ann_file='ImageSets/people_animals/train.txt', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**dataset, ann_file='ImageSets/people_animals/val.txt', pipeline=test_pipeline))
test_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**dataset, ann_file='ImageSets/people_animals/test.txt', pipeline=test_pipeline))

# `--evaluation paper`: mIoU without the background, ECE and AECE of the foreground in batches of 8
# images, at the size of the network's input, as in voc2012.py. Images and classes are not the
# paper's. `--evaluation regions`: the calibration of the foreground, and near boundaries.
# `--evaluation unseen`: do scores tell the pixels of the classes that were not trained?
evaluations = dict(
    paper=dict(
        model=dict(data_preprocessor=dict(test_cfg=dict(size=size))),
        test_dataloader=dict(
            dataset=dict(
                pipeline=[
                    dict(type='LoadImageFromFile'),
                    dict(type='LoadAnnotations'),
                    dict(type='Resize', scale=size, keep_ratio=True),
                    dict(type='AtInputSize'),
                    dict(type='PackSegInputs'),
                ])),
        test_evaluator=[
            dict(type='ForegroundIoU'),
            dict(type='CalibrationMetric', metrics=['ECE', 'AECE'], protocol='paper'),
        ]),
    regions=dict(
        test_evaluator=[
            dict(
                type='CalibrationMetric',
                metrics=['ECE', 'AECE', 'accuracy', 'confidence'],
                protocol=region,
                prefix=region) for region in ('foreground', 'boundary')
        ]),
    unseen=dict(
        test_dataloader=dict(
            dataset=dict(
                pipeline=[
                    dict(type='LoadImageFromFile'),
                    dict(type='Resize', scale=size, keep_ratio=True),
                    dict(type='LabelUntrainedClasses', ood_index=254),
                    dict(type='LoadAnnotations'),
                    dict(type='PackSegInputs'),
                ])),
        test_evaluator=[
            dict(
                type='OODMetric',
                scores=['max_probability', 'max_logit', 'energy', 'entropy'],
                ood_index=254),
        ]),
    mmseg=dict())
