"""Records of tests under shift, as tools/test_robustness.py leaves them."""

import math

from records import CE, member, model, trained, write

from mmcalib.choices import CORRUPTIONS
from mmcalib.metrics.metric_text import ECE

LOSSES = {'CE': CE, 'LS α=0.1': dict(type='LabelSmoothingLoss', alpha=0.1)}
TEMPERATURE = dict(methods=['temperature'], options={}, split='val', forced=[])


def shifted_metrics(quality, ece):
    """Metrics of a segmentor, distinct ones."""
    other_metrics = {f'calibration/{name}': ece / 10 for name in ('AECE', 'NLL', 'AUGRC')}
    return {'mIoU': quality, ECE: ece} | other_metrics


def write_shifted_tests(
    folder,
    label,
    *,
    seed=0,
    corruptions=CORRUPTIONS,
    severities=(1, 5),
    ece=1.0,
    data=(),
    source=(('seed', 0),),
    file='best.pth',
    digest='',
    nan=(),
    date='2026-01-01',
    num_bins=15,
    **training,
):
    """Write the records of a model on clean data, corruptions and other data."""
    loss, _, calibration = label.partition(' + ')
    tested_member = member(
        f'{label}{seed}/{file}',
        seed=seed,
        loss=LOSSES[loss],
        digest=label + digest,
        file=file,
        calibration=TEMPERATURE if calibration else None,
        training=trained(**training),
    )
    tests = [('clean', 'clean', 0, shifted_metrics(80.0, ece))]
    for number, name in enumerate(corruptions):
        for severity in severities:
            metrics = shifted_metrics(80.0 - number - severity, ece + number * severity)
            if severity == severities[-1]:
                metrics |= dict.fromkeys(nan, math.nan)
            tests.append(('corruption', name, severity, metrics))
    tests += [('data', name, 0, shifted_metrics(50.0, 9.0)) for name in data]
    for kind, name, severity, metrics in tests:
        shift = dict(kind=kind, name=name, severity=severity, digest=seed)
        test_folder = name
        if severity > 0:
            shift |= dict(source)
            test_folder = f'{name}_{severity}'
        evaluation = dict(dataset=dict(type='VOC', samples=7), num_bins=num_bins, shift=shift)
        write(
            folder / f'{label}{seed}-{file}{digest}' / test_folder,
            'ce/tiny',
            metrics=metrics,
            model=model(dict(tested_member)),
            date=date,
            evaluation=evaluation,
        )
    return folder
