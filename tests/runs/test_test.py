"""What is found before a run starts, or before its numbers are."""

import re

import pytest
import torch
from commands import ROOT, call_here
from tested import test_checkpoint

from mmcalib.checks import UserError
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import load_config, set_loader_defaults


@pytest.mark.parametrize(
    ('out', 'said'),
    [
        ('folder.pkl', r'folder\.pkl is a folder: name a file'),
        ('file/below.pkl', r'below\.pkl cannot be written'),
        ('metrics.txt', r'predictions go to a \.pkl file'),
    ],
)
def test_an_out_that_cannot_be_written_is_said_before_the_test(
    out, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'folder.pkl').mkdir()
    (tmp_path / 'file').touch()
    arguments = [ROOT / 'configs/ce/digits.py', 'none.pth', '--out', out]
    with pytest.raises(SystemExit):
        call_here('test.py', *arguments, monkeypatch=monkeypatch)
    assert re.search(said, capsys.readouterr().err)


def test_what_is_no_checkpoint_is_said(tmp_path):
    whole, legacy = tmp_path / 'whole.pth', tmp_path / 'legacy.pth'
    torch.save({'a': torch.zeros(3)}, whole)
    torch.save({'a': torch.zeros(3)}, legacy, _use_new_zipfile_serialization=False)
    assert read_checkpoint(whole).digest == read_checkpoint(legacy).digest
    with pytest.raises(UserError, match='no checkpoint'):
        read_checkpoint(str(tmp_path))
    (tmp_path / 'text.pth').write_text('# text')
    with pytest.raises(UserError, match='another kind of file'):
        read_checkpoint(str(tmp_path / 'text.pth'))
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(UserError, match='not written to its end'):
        read_checkpoint(str(whole))


@pytest.mark.parametrize('tta', [False, True])
def test_a_checkpoint_of_another_model_is_not_tested(tta, tmp_path):
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'), {'test_dataloader.num_workers': 0})
    cfg.work_dir, cfg.launcher = str(tmp_path), 'none'
    torch.save({'state_dict': {'backbone.weight': torch.zeros(2)}, 'meta': {}}, tmp_path / 'a.pth')
    set_loader_defaults(cfg)
    with pytest.raises(UserError, match=r'does not fit the model of this config: it lacks'):
        test_checkpoint(cfg, tmp_path / 'a.pth', tta=tta)
    assert not (tmp_path / 'results.json').exists()
