"""Importing this module registers every class and function of the plug-in."""

from mmcalib.openmmlab import calibrated_model as calibrated_model
from mmcalib.openmmlab import datasets as datasets
from mmcalib.openmmlab import ensembles as ensembles
from mmcalib.openmmlab import hooks as hooks
from mmcalib.openmmlab import losses as losses
from mmcalib.openmmlab import metrics as metrics
from mmcalib.openmmlab import models as models
from mmcalib.openmmlab import transforms as transforms
