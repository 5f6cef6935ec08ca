import pytest
from records import member, model

from mmcalib.record import model_label

CE = dict(type='CrossEntropyLoss')
LS = dict(type='LabelSmoothingLoss', alpha=0.1)
TEMPERATURE = dict(methods=['temperature'], forced=[])
FORCED = dict(methods=['vector', 'temperature'], forced=['fitted on the test split'])


def mean_of(members=1, views=1, mc_dropout=0, calibration=None, **own):
    views = [list(range(views))] if views > 1 else []
    parts = dict(views=views, mc_dropout=mc_dropout, calibration=calibration)
    return model(*(member(**{'loss': CE, **own}) for _ in range(members)), **parts)


@pytest.mark.parametrize(
    ('tested', 'label'),
    [
        (mean_of(), 'CE'),
        (mean_of(loss=None), 'mine'),
        (model(member(loss=CE, calibration=TEMPERATURE)), 'CE + temperature'),
        (
            model(member(loss=CE, calibration=FORCED)),
            'CE + vector + temperature, fitted on the test split',
        ),
        (mean_of(5), 'CE × 5'),
        (mean_of(views=6), 'CE + TTA (6)'),
        (mean_of(mc_dropout=20), 'CE + MC dropout (20)'),
        (
            model(
                *[member(loss=CE, calibration=TEMPERATURE)] * 2,
                views=[[1, 2, 3, 4]], mc_dropout=3, calibration=TEMPERATURE,
            ),
            'CE + temperature × 2 + TTA (4) + MC dropout (3) + temperature',
        ),
        (model(member(loss=CE), member(loss=LS)), 'CE & LS α=0.1 × 2'),
    ],
)  # fmt: skip
def test_a_label_says_what_was_done_after_the_training(tested, label):
    assert model_label(tested, experiment='mine') == label
