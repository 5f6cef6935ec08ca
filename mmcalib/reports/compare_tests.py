"""Comparison of two tests of the same images, by the statistics that they leave of each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.files import RESULTS, STATISTICS, VALIDATION_RESULTS, file_name_for_split
from mmcalib.metrics.compare import Comparison, compare_tables
from mmcalib.metrics.intervals import metric_values
from mmcalib.metrics.metric_text import GAP, NLL, PREFIX
from mmcalib.metrics.paired_intervals import Mean
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.reports.contents import unify_data
from mmcalib.reports.row_labels import differing_settings
from mmcalib.runs.labels import record_label
from mmcalib.runs.record import CONTENT, Record
from mmcalib.texts import command_text, printable

# These are compared whatever the tests have printed, since bins and sums of images have them.
ALWAYS_COMPARED = ('accuracy', 'gap', 'NLL')
NEED_SUMS = ('NLL', 'Brier')
# Parts of an evaluation in which two tests must agree, by what they are otherwise.
MUST_AGREE = {
    'of other images': ('dataset', 'data_options', CONTENT, 'limit', 'shift'),
    'by other protocols': ('protocol', 'num_bins', 'boundary_width'),
    'with other ignored labels': ('ignore_index',),
}


@dataclass(frozen=True)
class SavedTest:
    """A test, from the files that it has left.

    Attributes:
        path: Path that the user named.
        record: Record of the test.
        statistics: Statistics of its calibration metric, with tables of each image.
    """

    path: str
    record: Record
    statistics: CalibrationStatistics

    @property
    def label(self) -> str:
        """The name of the loss and of the steps after the training, and the path."""
        return printable(f'{record_label(self.record)}, {self.path}')


def remedy() -> str:
    """Return how to make the tests that a comparison needs."""
    return f'test again with {command_text("test")} CONFIG CHECKPOINT --calibration'


def compare_tests(path_a: str, path_b: str, *, level: float = 0.95) -> Comparison:
    """Return the differences of the metrics of two tests of the same images.

    Args:
        path_a: Work dir of one test, or its results.json or calibration.npz.
        path_b: The same of the other.
        level: Level of the intervals.

    Raises:
        FileNotFoundError: If there is no test.
        UserError: If the tests are of other images, by another protocol, or with other ignored
            labels; or if one has no statistics of each image.
    """
    test_a = read_test(path_a)
    test_b = read_test(path_b)
    check_comparable(test_a, test_b)
    copies = test_a.statistics.image_groups
    if copies is None:  # A test of 0.4 does not know them.
        copies = test_b.statistics.image_groups
    test_a.statistics.image_groups = copies
    test_b.statistics.image_groups = copies
    names, notes = compared_metrics(test_a, test_b)
    protocol = PROTOCOLS[test_a.statistics.protocol]
    unit = 'image'
    if (protocol.images_per_unit or 1) > 1:
        unit = f'group of {protocol.images_per_unit} images'
    return compare_tables(
        names,
        stored_values(test_a.statistics, names),
        stored_values(test_b.statistics, names),
        unit_tables(test_a.statistics),
        unit_tables(test_b.statistics),
        level=level,
        unit=unit,
        mean=mean_over_units(test_a.statistics),
        notes=[f'A: {test_a.label}', f'B: {test_b.label}', *training_notes(test_a, test_b), *notes],
    )


def training_notes(*tests: SavedTest) -> list[str]:
    """Return a sentence about the settings but for the loss that two trainings do not share."""
    members = [test.record.model['members'] for test in tests]
    if any(len(group) != 1 for group in members):
        return []
    settings = differing_settings([group[0]['training'] for group in members])
    if not any(settings):
        return []
    texts = [', '.join(own) or 'the default' for own in settings]
    return [printable(f'Trained otherwise: A with {texts[0]}; B with {texts[1]}.')]


def read_test(path: str) -> SavedTest:
    """Return a test by its work dir, its record or its statistics.

    Of a work dir that has tests of both splits, it is that of the test split.
    """
    folder = Path(path)
    record_file = folder / RESULTS
    if folder.is_file():
        split = 'val' if folder.stem.endswith('_val') else 'test'
        record_file = folder.with_name(file_name_for_split(RESULTS, split))
    elif not record_file.is_file():
        record_file = folder / VALIDATION_RESULTS
    if not record_file.is_file():
        raise FileNotFoundError(f'there is no {RESULTS} of a test in {path}')
    record = Record.read(record_file)
    file = record_file.with_name(file_name_for_split(STATISTICS, record.split))
    if not file.is_file():
        raise UserError(f'there is no {file.name} beside {record_file}: {remedy()}')
    statistics = CalibrationStatistics.load(file)
    if statistics.image_bins is None:
        raise UserError(f'{file} has no bins of each image: {remedy()}')
    return SavedTest(str(path), record, statistics)


def check_comparable(test_a: SavedTest, test_b: SavedTest) -> None:
    """Refuse two tests whose figures differ for other reasons than their models.

    This prevents a wrong number.
    """
    unify_data([test_a.record.evaluation, test_b.record.evaluation])
    for disagreement, keys in MUST_AGREE.items():
        parts = []
        for test in (test_a, test_b):
            parts.append({key: test.record.evaluation.get(key) for key in keys})
        if parts[0] == parts[1]:
            continue
        settings_a, settings_b = differing_settings(parts)
        text_a = ', '.join(settings_a) or 'without it'
        text_b = ', '.join(settings_b) or 'without it'
        raise UserError(
            f'{test_a.path} and {test_b.path} are tests {disagreement}: '
            f'{text_a} and {text_b}. Test both models alike'
        )
    check_same_images(test_a, test_b)


def check_same_images(test_a: SavedTest, test_b: SavedTest) -> None:
    """Refuse tests whose images differ by their number, valid predictions or labels."""
    a = test_a.statistics
    b = test_b.statistics
    both = f'{test_a.path} and {test_b.path} are tests of other images'
    count_a = a.image_bins[:, 0].sum(dim=1)
    count_b = b.image_bins[:, 0].sum(dim=1)
    if len(count_a) != len(count_b):
        raise UserError(f'{both}: {len(count_a):,} and {len(count_b):,}. Test both on one data set')
    index = first_difference(count_a, count_b)
    if index is not None:
        raise UserError(
            f'{both}, or of other ignored labels: image {index} has {count_a[index]:,.0f} and '
            f'{count_b[index]:,.0f} valid predictions. Test both on one data set'
        )
    if a.image_labels is None or b.image_labels is None:
        return
    index = first_difference(a.image_labels, b.image_labels)
    if index is not None:
        raise UserError(
            f'{both}: image {index} has the labels {a.image_labels[index]} and '
            f'{b.image_labels[index]}. Test both on one data set'
        )


def first_difference(a: Tensor, b: Tensor) -> int | None:
    """Return the first index at which two vectors differ, None if they are equal."""
    differing = (a != b).nonzero()
    return int(differing[0]) if len(differing) else None


def compared_metrics(test_a: SavedTest, test_b: SavedTest) -> tuple[list[str], list[str]]:
    """Return the metrics that both tests have, and sentences about those that are left out."""
    names = [name for name in test_a.statistics.metrics if name in test_b.statistics.metrics]
    names += [name for name in ALWAYS_COMPARED if name not in names]
    # Metrics that another CalibrationMetric of the test has measured with other options.
    others: set[str] = set()
    for test in (test_a, test_b):
        others |= set(test.record.evaluation.get('other_metrics', ()))
    names = [name for name in names if name not in others]
    has_sums = True
    for test in (test_a, test_b):
        has_sums = has_sums and test.statistics.image_sums is not None
    if has_sums:
        return names, []
    without_sums = [name for name in names if name in NEED_SUMS]
    names = [name for name in names if name not in NEED_SUMS]
    sentence = (
        f'{" and ".join(without_sums)} cannot be compared, since a test of an earlier version '
        f'kept no sums of each image: {remedy()}.'
    )
    return names, [sentence]


def unit_tables(statistics: CalibrationStatistics) -> UnitTables:
    """Return the tables of the images, or of the batches that a protocol averages over."""
    images_per_unit = PROTOCOLS[statistics.protocol].images_per_unit
    if images_per_unit is None:
        return statistics.unit_tables()
    tables = replace(statistics, image_groups=None).unit_tables()
    if images_per_unit == 1:
        return tables
    return tables.sum_by(torch.arange(len(tables.bins), device='cpu') // images_per_unit)


def mean_over_units(statistics: CalibrationStatistics) -> Mean | None:
    """Return the function by which a protocol averages; None if it pools all predictions."""
    protocol = PROTOCOLS[statistics.protocol]
    return None if protocol.images_per_unit is None else protocol.mean


def stored_values(statistics: CalibrationStatistics, names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a test: from the tables of its units, or else as it printed them."""
    tables = unit_tables(statistics)
    weights = torch.ones(1, len(tables.bins), dtype=torch.float64, device='cpu')
    computed = metric_values(names, tables, weights, mean=mean_over_units(statistics))
    values = {}
    for name in names:
        if name in computed:
            values[name] = computed[name].item()
        else:
            values[name] = statistics.metrics[name]
    return values


def unprinted_metrics(folder: Path, record: Record) -> dict[str, float]:
    """Return gap and NLL of a test that did not print them, by key, from its statistics.

    A test without statistics of each image has none.
    """
    keys = [key for key in (GAP, NLL) if key not in record.metrics]
    if not keys or not any(key.startswith(PREFIX) for key in record.metrics):
        return {}
    try:
        statistics = CalibrationStatistics.load(
            folder / file_name_for_split(STATISTICS, record.split)
        )
    except (OSError, ValueError):
        return {}  # A page names the file, of which it has no diagram.
    if statistics.image_bins is None or not statistics.num_predictions:
        return {}
    if statistics.image_sums is None:
        keys = [key for key in keys if key != NLL]
    values = stored_values(statistics, [key.removeprefix(PREFIX) for key in keys])
    return {f'{PREFIX}{name}': value for name, value in values.items()}
