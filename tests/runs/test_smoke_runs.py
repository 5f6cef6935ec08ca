"""``--limit`` and ``--calibration``: a few samples of any config, and what it does not measure."""

import json

import pytest
import torch
from commands import ROOT, call_here
from mmengine.config import Config

from mmcalib.metrics import CalibrationMetric
from mmcalib.record import paths_of
from mmcalib.reports.runs import find_runs
from mmcalib.runs.config import limit_samples, load_config, set_work_dir
from mmcalib.runs.test import MEASURED, complete_calibration


def iterations(limit, batch_size):
    cfg = Config(
        dict(
            train_cfg=dict(max_iters=20_000, val_interval=2000, val_begin=100),
            train_dataloader=dict(batch_size=batch_size, dataset=dict(type='X')),
            val_dataloader=None,
        )
    )
    limit_samples(cfg, limit)
    return cfg


@pytest.mark.parametrize(('limit', 'batch_size', 'steps'), [(8, 4, 2), (9, 4, 3), (3, 4, 1)])
def test_iterations_are_as_many_as_an_epoch_has(limit, batch_size, steps):
    cfg = iterations(limit, batch_size)
    assert cfg.train_cfg == dict(max_iters=steps, val_interval=steps)
    assert cfg.train_dataloader.batch_size == min(limit, batch_size)
    assert cfg.train_dataloader.dataset.samples == cfg.limit == limit


def test_files_of_real_runs_are_left_alone():
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'))
    for given, folder in ((None, 'work_dirs/ce/digits/limit8'), ('mine', 'mine')):
        cfg.pop('work_dir', None)
        set_work_dir(cfg, given, limit=8)
        assert cfg.work_dir == folder
    with pytest.raises(ValueError, match='--limit must be an integer of at least 1, got 0'):
        limit_samples(cfg, 0)


def test_a_calibration_metric_is_added_or_completed():
    others = [CalibrationMetric('ECE', prefix='other')]
    (added,) = complete_calibration(others)
    assert added.metrics == MEASURED and others[0].metrics == ('ECE',)
    paper = CalibrationMetric(('MCE', 'AECE'), protocol='paper', confidence_interval=0.9)
    assert complete_calibration([paper]) == []
    assert paper.metrics == ('MCE', 'AECE', 'ECE', 'gap', 'NLL', 'Brier')
    same = CalibrationMetric(paper.metrics, protocol='paper', confidence_interval=0.9)
    assert vars(paper) == vars(same)


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_a_smoke_run_trains_and_tests_says_so_and_is_in_no_table(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / 'mine.py'
    evaluator = {'digits': 'Accuracy', 'digit_scenes': 'IoUMetric'}[name]
    config.write_text(
        f"_base_ = 'mmcalib::mbls/{name}.py'\n"
        f"test_evaluator = [dict(type='{evaluator}')]\n"
        'default_hooks = dict(reliability_diagram=None, confidence_map=None)\n'
    )
    torch.set_num_threads(2)
    call_here('train.py', config, '--limit', 11, monkeypatch=monkeypatch)
    assert torch.get_num_threads() == 1  # which such a small network is fastest with
    folder = tmp_path / 'work_dirs/mine/limit11'
    results = json.loads((folder / 'results.json').read_text())
    assert results['evaluation']['limit'] == 11 == results['evaluation']['dataset']['samples']
    said = capsys.readouterr()
    said = said.out + said.err
    assert 'Samples: train on 11, validate on 11, test on 11; SMOKE RUN with --limit 11' in said
    assert 'Calibration was not measured; tools/test.py CONFIG CHECKPOINT --calibration' in said
    with pytest.raises(FileNotFoundError, match=f'smoke runs with --limit: {folder}'):
        find_runs([tmp_path])

    # The checkpoint of a smoke run stays one, whatever it is tested on.
    options = ['--work-dir', 'full', '--calibration']
    if name == 'digits':
        call_here(
            'test.py', config, *paths_of(results['model']), *options, monkeypatch=monkeypatch
        )  # fmt: skip
        tested = json.loads((tmp_path / 'full/results.json').read_text())
        assert tested['evaluation']['dataset']['samples'] == 797
        assert 'calibration/ECE_low' in tested['metrics']
        assert list(tmp_path.rglob('vis_image/reliability_diagram_test*'))
        said = capsys.readouterr()

        # A config with a metric of its own keeps it, and has what it lacks beside it.
        command = ['mmcalib::mbls/digits.py', *paths_of(results['model']), '--calibration']
        call_here('test.py', *command, '--work-dir', 'own', monkeypatch=monkeypatch)
        own = json.loads((tmp_path / 'own/results.json').read_text())['metrics']
        assert own == tested['metrics']
        said = capsys.readouterr()
        gap = next(line for line in (said.out + said.err).splitlines() if line.startswith('gap '))
        low, high = (own[f'calibration/gap_{end}'] for end in ('low', 'high'))
        judged = 'over-confident' if low > 0 else 'under-confident' if high < 0 else 'not told'
        assert f' {own["calibration/gap"]:+.2f} % ' in gap and f' {judged}' in gap
        assert gap.endswith(f'; interval {low:+.2f} to {high:+.2f} %')
