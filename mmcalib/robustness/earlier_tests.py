"""What robustness.json keeps of earlier calls, beside the tests of the present one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mmcalib.corruption_names import CORRUPTIONS
from mmcalib.reports.robustness_results import KINDS, made_by, read_robustness, write_robustness
from mmcalib.work_dir_files import ROBUSTNESS

Test = tuple[str, str, int]
OF_CALLS = ('experiment', 'split', 'limit', 'settings')


def name_of(test: Mapping) -> Test:
    """Return kind, name and severity of a test."""
    return test['kind'], test['name'], test['severity']


def earlier_entries(folder: str | Path, content: Mapping) -> list[dict]:
    """Return the checkpoints of earlier calls with the settings of this one, if there are any."""
    try:
        earlier = read_robustness(folder)
    except (FileNotFoundError, ValueError):
        return []
    same = all(earlier.get(key) == content[key] for key in OF_CALLS)
    return earlier['checkpoints'] if same else []


def leave_what_stays(
    folder: str | Path,
    content: Mapping,
    earlier: Sequence[Mapping],
    to_come: Mapping[str, Collection[Test]],
) -> list[dict]:
    """Take out of ``robustness.json`` what the tests to come will overwrite, and return the rest.

    So a call that is killed leaves nothing there that its files contradict.

    Args:
        folder: The work dir.
        content: Of this call.
        earlier: See :func:`earlier_entries`.
        to_come: The tests that are to be made, by the digest of the checkpoint.
    """
    if not any(to_come.values()):
        return list(earlier)
    stay = []
    for entry in earlier:
        gone = to_come.get(entry['digest'], ())
        tests = [test for test in entry['tests'] if name_of(test) not in gone]
        if tests and tests[0]['kind'] == KINDS[0]:  # without clean data there is no entry
            stay.append({**entry, 'tests': tests})
    if stay:
        write_robustness(folder, {**content, 'checkpoints': stay})
    else:
        Path(folder, ROBUSTNESS).unlink(missing_ok=True)
    return stay


def merged(
    stay: Sequence[Mapping], earlier: Sequence[Mapping], entries: Sequence[Mapping]
) -> list[Mapping]:
    """Return the checkpoints of earlier calls and of this one, whose entries have tests of both.

    Args:
        stay: See :func:`leave_what_stays`.
        earlier: See :func:`earlier_entries`.
        entries: Of this call.
    """
    before = {entry['digest']: entry['tests'] for entry in earlier}
    digests = {entry['digest'] for entry in entries}
    paths = {entry['checkpoint'] for entry in entries}
    others = [e for e in stay if e['digest'] not in digests and e['checkpoint'] not in paths]
    return [*others, *(_with_tests(entry, before.get(entry['digest'], ())) for entry in entries)]


def _with_tests(entry: Mapping, earlier: Sequence[Mapping]) -> dict:
    """Return a checkpoint with other tests of it, unless images were corrupted otherwise there."""
    names = [name_of(test) for test in entry['tests']]
    made = {made_by(test) for test in entry['tests'] if test['kind'] == 'corruption'}
    rest = [
        test
        for test in earlier
        if name_of(test) not in names
        and (test['kind'] != 'corruption' or not made or made_by(test) in made)
    ]
    return {**entry, 'tests': sorted([*entry['tests'], *rest], key=_place)}


def _place(test: Mapping) -> tuple[int, int, int]:
    kind, name, severity = name_of(test)
    number = CORRUPTIONS.index(name) if name in CORRUPTIONS else 0
    return KINDS.index(kind), number, severity
