"""The tested runs below some folders, read from the ``results.json`` that every test leaves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from mmcalib.reports.ood_results import parts_of
from mmcalib.reports.results_reader import ReportedRun, read_results
from mmcalib.reports.robustness_results import reported_runs
from mmcalib.work_dir_files import (
    EARLIER,
    RESULTS,
    ROBUSTNESS,
    SWEEP,
    VALIDATION_RESULTS,
)

LOG_FOLDER = re.compile(r'\d{8}_\d{6}')  # mmengine names it by the time of the start


def collect_runs(folders: Sequence[str]) -> tuple[list[ReportedRun], dict[str, list[str]]]:
    """Return the tested runs below some folders, and the paths of the others by what they lack.

    Tests on shifted data are runs of their own, whose data are named after the shifts; so is each
    score by which unseen classes were told from the others, and each evaluation of a sweep on
    validation data.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    for folder in dict.fromkeys(path for root in folders for path in _folders(Path(root))):
        # A sweep chooses by the results on validation data, and tests the chosen value alone.
        of_sweep = (folder.parent / SWEEP).is_file()
        names = [RESULTS, VALIDATION_RESULTS] if of_sweep else [RESULTS]
        files = [folder / name for name in names if (folder / name).is_file()]
        for file in files:
            try:
                run = read_results(file)
                if run.limit:
                    others['smoke runs with --limit'].append(str(folder))
                else:
                    runs += parts_of(run)
            except (OSError, ValueError) as error:
                others[f'unreadable {file.name}'].append(f'{folder} ({error})')
        if files:
            pass
        elif (folder / ROBUSTNESS).is_file():
            pass  # below
        elif (folder / VALIDATION_RESULTS).is_file():
            others['not tested, only validated'].append(str(folder))
        elif (folder / 'last_checkpoint').is_file() or _has_log(folder):
            others[f'unfinished or not tested, no {RESULTS}'].append(str(folder))
        if (folder / ROBUSTNESS).is_file():
            try:
                shifted = reported_runs(folder)
            except ValueError as error:
                others[f'unreadable {ROBUSTNESS}'].append(str(error))
                continue
            if any(run.limit for run in shifted):
                others['smoke runs with --limit'].append(str(folder))
            else:
                runs += shifted
    if not runs:
        found = ''.join(f'; {reason}: {", ".join(paths)}' for reason, paths in others.items())
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}{found}')
    return runs, dict(others)


def _folders(root: Path) -> list[Path]:
    """Return a folder and those below it, but for what later trainings have set aside."""
    below = [
        path
        for path in root.rglob('*/')
        if not any(part.startswith(EARLIER) for part in path.relative_to(root).parts)
    ]
    return sorted([root, *below])


def _has_log(folder: Path) -> bool:
    paths = folder.iterdir() if folder.is_dir() else ()
    return any(LOG_FOLDER.fullmatch(path.name) for path in paths)
