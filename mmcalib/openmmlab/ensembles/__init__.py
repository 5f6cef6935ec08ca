"""Ensembles: members, test-time augmentation and MC dropout as one model."""

from mmcalib.openmmlab.ensembles.mean_probability_model import MeanProbabilityModel

__all__ = ['MeanProbabilityModel']


def __dir__() -> list[str]:
    return __all__
