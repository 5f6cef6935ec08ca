"""Files that a run writes: whole, not through links, and with usual permissions."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from mmcalib.files import MACHINE, remove_leftovers, whole_file
from mmcalib.runs.record import Record, read_json


def record(ece):
    model = dict(members=[])
    return Record('digits', 'test', model=model, evaluation={}, metrics={'calibration/ECE': ece})


def test_record_in_shared_folder_is_not_written_through_a_link(tmp_path):
    victim = tmp_path / 'victim'
    victim.write_text('precious')
    folder = tmp_path / 'shared'
    folder.mkdir()
    for name in (f'.results.{os.getpid()}.json', '.results.json', '.results.0.json'):
        (folder / name).symlink_to(victim)
    record(1.0).write(folder / 'results.json')
    assert victim.read_text() == 'precious'
    assert read_json(folder / 'results.json')['metrics'] == {'calibration/ECE': 1.0}


def test_whole_file_that_fails_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / 'results.json'
    record(1.0).write(path)
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_text('half')
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [path] and read_json(path)['metrics']


def write_and_die(path):
    with whole_file(path) as temporary:
        temporary.write_text('half')
        os.kill(os.getpid(), signal.SIGKILL)


def test_whole_file_removes_what_killed_processes_have_left(tmp_path):
    path = tmp_path / 'results.json'
    remove_leftovers.cache_clear()
    process = multiprocessing.get_context('fork').Process(target=write_and_die, args=(path,))
    process.start()
    process.join()
    (leftover,) = tmp_path.iterdir()
    assert leftover.read_text() == 'half'
    kept = ['.results.0123456789abcdef.json', leftover.name.replace(MACHINE, '000000')]
    for name in kept:
        (tmp_path / name).touch()
    with whole_file(tmp_path / 'running.json') as running:
        remove_leftovers.cache_clear()
        record(1.0).write(path)
        assert {*tmp_path.iterdir()} == {path, running, *(tmp_path / name for name in kept)}


def test_whole_file_has_the_permissions_of_any_file(tmp_path):
    before = os.umask(0o027)
    try:
        record(1.0).write(tmp_path / 'results.json')
    finally:
        os.umask(before)
    assert Path(tmp_path / 'results.json').stat().st_mode & 0o777 == 0o640
