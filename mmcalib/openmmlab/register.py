"""Importing this module registers every class and function of the plug-in."""

from mmcalib.openmmlab import (
    calibrated_model as calibrated_model,
    datasets as datasets,
    ensembles as ensembles,
    hooks as hooks,
    losses as losses,
    metrics as metrics,
    models as models,
    transforms as transforms,
)
