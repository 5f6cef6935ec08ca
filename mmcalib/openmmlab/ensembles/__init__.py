"""Ensembles: members, test-time augmentation and MC dropout as one model."""

from mmcalib.openmmlab.ensembles.mean_probability_model import (
    MeanProbabilityModel as MeanProbabilityModel,
)
