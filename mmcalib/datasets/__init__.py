"""Datasets that neither toolbox has."""

from mmcalib.datasets.cifar_c import CIFARC as CIFARC
from mmcalib.datasets.digits import Digits as Digits
from mmcalib.datasets.digits import DigitScenes as DigitScenes
from mmcalib.datasets.evenly_spaced_subset import EvenSubset as EvenSubset
from mmcalib.datasets.imagenet_c import ImageNetC as ImageNetC
from mmcalib.datasets.newsgroups import Newsgroups20 as Newsgroups20
from mmcalib.datasets.seeded_split import seeded_split as seeded_split
from mmcalib.datasets.tiny_imagenet import TinyImageNet as TinyImageNet
from mmcalib.datasets.with_ood_sets import WithOODSets as WithOODSets
