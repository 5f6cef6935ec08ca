import pytest
from records import member, model

from mmcalib.record import model_label

CE = dict(type='CrossEntropyLoss')
LS = dict(type='LabelSmoothingLoss', alpha=0.1)
TEMPERATURE = dict(methods=['temperature'], forced=[])
FORCED = dict(methods=['vector', 'temperature'], forced=['fitted on the test split'])


def mean_of(members=1, views=1, mc_dropout=0, calibration=None):
    views = [list(range(views))] if views > 1 else []
    parts = dict(views=views, mc_dropout=mc_dropout, calibration=calibration)
    return model(*(member() for _ in range(members)), **parts)


@pytest.mark.parametrize(
    ('parts', 'label'),
    [
        ((CE, None, None), 'CE'),
        ((None, None, None), 'mine'),
        ((CE, TEMPERATURE, None), 'CE + temperature'),
        ((CE, FORCED, None), 'CE + vector + temperature, fitted on the test split'),
        ((CE, None, mean_of(5)), 'CE × 5'),
        ((CE, None, mean_of(views=6)), 'CE + TTA (6)'),
        ((CE, None, mean_of(mc_dropout=20)), 'CE + MC dropout (20)'),
        (
            (CE, TEMPERATURE, mean_of(2, 4, 3, TEMPERATURE)),
            'CE + temperature × 2 + TTA (4) + MC dropout (3) + temperature',
        ),
    ],
)
def test_a_label_says_what_was_done_after_the_training(parts, label):
    assert model_label(*parts, experiment='mine') == label


def test_the_losses_of_members_that_differ_are_both_said():
    label = model_label(None, None, mean_of(2), experiment='mine', losses=[CE, LS])
    assert label == 'CE & LS α=0.1 × 2'
