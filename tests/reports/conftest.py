import pytest
from records import CE
from run_folders import write_segmentor_test


@pytest.fixture
def runs(tmp_path):
    """Return the folders of tests of two segmentors, trained with CE and LS."""
    smoothing = dict(type='LabelSmoothingLoss')
    return [
        write_segmentor_test(tmp_path / 'ce', 1, 2, loss=CE),
        write_segmentor_test(tmp_path / 'ls', 0, 1, ece=4.0, loss=smoothing),
    ]
