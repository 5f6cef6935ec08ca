"""Folders of runs with all files that figures and pages are drawn from."""

import json

import torch
from drawings import statistics, sweep, table, view
from records import CIFAR10, write

from mmcalib.visualization import ConfidenceMaps

NUM_RANGES = 8
EMPTY_RANGE = 5


def write_segmentor_test(folder, *image_indices, name='confidence_maps.npz', ece=3.0, **content):
    """Write all that a test of a segmentor leaves, with maps of some images."""
    class_columns = dict(
        classes=['sky', '<road>'],
        ECE=[ece + 40, None],
        accuracy=[80.0, None],
        confidence=[90.0, None],
        count=[1234, 0],
    )
    write(
        folder,
        'x/demo',
        metrics={'mIoU': 50.0, 'calibration/ECE': ece},
        strata=dict(per_class=dict(calibration=class_columns)),
        **content,
    )
    distance_bins = [table(5) for _ in range(NUM_RANGES)]
    distance_bins[EMPTY_RANGE] *= 0
    statistics(
        table(5),
        num_bins=5,
        ECE=ece,
        AECE=2.0,
        distance_bins=torch.stack(distance_bins, dim=1),
    ).save(folder / 'calibration.npz')
    views = [view(index, size=(4, 6), num_classes=2) for index in image_indices]
    ConfidenceMaps(views, views[:1], ['sky', 'road']).save(folder / name)
    return folder


def write_sweep(folder, ece=3.0, **changes):
    """Write a sweep with the validation of one of its trainings."""
    write(
        folder / 'a=1',
        'x/swept',
        name='results_val.json',
        evaluation=dict(dataset=dict(CIFAR10, split='val')),
        split='val',
        ece=ece,
    )
    (folder / 'sweep.json').write_text(json.dumps(sweep((1.0, ece), tested=(), **changes)))
