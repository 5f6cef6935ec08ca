"""Sources of the data sets of the configs, for messages about missing ones."""

from __future__ import annotations

SOURCES = {
    'CIFAR10': 'Unpack https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz there',
    'TinyImageNet': 'Unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and point to its '
    'tiny-imagenet-200, which holds wnids.txt',
    'CUB': 'Unpack CUB_200_2011.tgz of https://data.caltech.edu/records/65de6-vp158 and point to '
    'its CUB_200_2011, which holds images.txt',
    'PascalVOCDataset': 'Unpack VOCtrainval_11-May-2012.tar of '
    'http://host.robots.ox.ac.uk/pascal/VOC/voc2012/ and point to its VOCdevkit/VOC2012',
    'Newsgroups20': 'Unpack 20news-bydate.tar.gz of http://qwone.com/~jason/20Newsgroups/ there, '
    'so that it holds 20news-bydate-train/, or 20news-19997.tar.gz, which holds 20_newsgroups/',
}
# Ends of errors about missing lists of VOC.
AUGMENTED = (
    " It lists the augmented annotations (SBD), which mmseg's tools/dataset_converters/voc_aug.py "
    'adds to VOC 2012. '
)
WITHOUT_AUGMENTED = (
    "Without them, set ann_file='ImageSets/Segmentation/train.txt', as "
    'mmcalib::ce/deeplabv3_r50_voc.py does'
)
# mmseg's configs concatenate both lists, so each image of the first would be trained on twice.
WITHOUT_SECOND = (
    'Without them, leave this part out in a config that inherits this one: '
    'train_dataloader = dict(dataset=dict(datasets=[_base_.dataset_train]))'
)
