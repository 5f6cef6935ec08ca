"""Datasets that neither toolbox has."""

from mmcalib.openmmlab.datasets.digits import Digits as Digits, DigitScenes as DigitScenes
from mmcalib.openmmlab.datasets.evenly_spaced_subset import EvenSubset as EvenSubset
from mmcalib.openmmlab.datasets.seeded_split import seeded_split as seeded_split
from mmcalib.openmmlab.datasets.stored_corruptions import CIFARC as CIFARC, ImageNetC as ImageNetC
from mmcalib.openmmlab.datasets.tiny_imagenet import TinyImageNet as TinyImageNet
from mmcalib.openmmlab.datasets.with_ood_sets import WithOODSets as WithOODSets
