import pytest
from file_models import CLASSIFIER, SEGMENTOR, write_members
from tiny_models import classifier, fcn_head, segmentor


@pytest.fixture(scope='module')
def classifiers(tmp_path_factory):
    """Three classifiers, their config, and their checkpoints."""
    models = [classifier(CLASSIFIER['model']['head'], seed=seed) for seed in range(3)]
    return models, *write_members(tmp_path_factory.mktemp('classifiers'), CLASSIFIER, models)


@pytest.fixture(scope='module')
def segmentors(tmp_path_factory):
    """Two segmentors, their config, and their checkpoints."""
    config = dict(SEGMENTOR, custom_imports=dict(imports=['tiny_models']))  # by other processes
    models = [segmentor(fcn_head(), seed=seed) for seed in range(2)]
    return models, *write_members(tmp_path_factory.mktemp('segmentors'), config, models)


@pytest.fixture(scope='module')
def segmenting(segmentors):
    """Config and checkpoint of one."""
    return segmentors[1], segmentors[2][0]
