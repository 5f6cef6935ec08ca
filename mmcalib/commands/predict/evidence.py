"""A labelled test of the model that predicts, which says what to expect of its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmcalib.errors import UserError
from mmcalib.files import RESULTS, STATISTICS, file_name_for_split
from mmcalib.runs.model import check_same_model
from mmcalib.runs.record import Record

TEST_AGAIN = (
    'test again with tools/test.py CONFIG CHECKPOINT… --split val --work-dir DIR, with the same '
    'options for views, dropout and temperature'
)


def statistics_of(path: str | Path, model: Mapping) -> Path:
    """Return the file of statistics that a test with labels has left in its work dir.

    Args:
        path: The work dir, of whose tests that of the validation split is taken if there is one; or
            the ``.npz`` file of one.
        model: The one that predicts now, as a record has it; it must be the one that was tested.

    Raises:
        UserError: If there is no such test, or it was of another model or pipeline, or was a smoke
            run.
    """
    path = Path(path)
    places = (path / file_name_for_split(STATISTICS, 'val'), path / STATISTICS)
    file = path if path.is_file() else next(filter(Path.is_file, places), None)
    if file is None:
        raise UserError(f'there is no {STATISTICS} of a test in {str(path)!r}: {TEST_AGAIN}')
    split = 'val' if file.stem.endswith('_val') else 'test'
    results = file.with_name(file_name_for_split(RESULTS, split))
    try:
        record = Record.read(results)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            f'{results}, which belongs to {file.name}: {error}. {TEST_AGAIN}'
        ) from error
    if record.limit:
        raise UserError(f'{file} is from a smoke run with --limit {record.limit}: {TEST_AGAIN}')
    check_same_model(record.model, model, file)
    if record.evaluation.get('tta'):
        raise UserError(f'{file} was measured under test-time augmentation: {TEST_AGAIN}')
    return file
