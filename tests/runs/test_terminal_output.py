"""What a run is told at its start, and how one ends that cannot be built."""

from pathlib import Path

import pytest
from commands import ROOT, call_here

DIGITS = ROOT / 'configs/ce/digits.py'


def test_what_cannot_be_built_is_one_line_and_its_traceback_in_the_log(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = [DIGITS, '--cfg-options', 'model.backbone.depth=19']
    with pytest.raises(SystemExit):
        call_here('train.py', *arguments, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert 'the config cannot be built: ' in said and 'depth 19' in said
    assert 'Traceback' not in said
    (log,) = Path('work_dirs/ce/digits').glob('*/*.log')
    assert 'Traceback' in log.read_text() and str(log) in said


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            "custom_hooks = [dict(type='LossScheduleHook', parameter='margin', values={0: -1.0})]",
            'margin must be',
        ),
    ],
)
def test_what_a_hook_refuses_is_one_line_before_the_first_step(
    options, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path('mine.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{options}\n")
    with pytest.raises(SystemExit) as end:
        call_here('train.py', 'mine.py', monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert end.value.code == 2 and f'error: {message}' in said.err
    assert 'Traceback' not in said.err + said.out and 'Epoch(train)' not in said.err + said.out
