"""Resumed trainings, which may change their length and nothing else that decides about metrics."""

import warnings

import pytest
import torch
from mmengine.dataset import default_collate
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS, HOOKS
from tested import run_config

from mmcalib.commands.train import train_and_test
from mmcalib.errors import UserError
from mmcalib.runs.checkpoint import checkpoint_from_content
from mmcalib.runs.facts import config_facts
from mmcalib.runs.resume import check_settings, resume_from
from mmcalib.runs.runner import build_runner
from mmcalib.runs.safe_loading import load_file

SMALL = {
    **{f'{split}_dataloader.dataset.indices': 32 for split in ('train', 'val', 'test')},
    'train_dataloader.batch_size': 16,
    'train_cfg.max_epochs': 2,
    'train_cfg.val_interval': 1,
}


@FUNCTIONS.register_module(force=True)
def my_collate(samples):
    """Collate samples as the user likes."""
    return default_collate(samples)


POLY = dict(type='PolyLR', power=0.9, by_epoch=True)
STEP = dict(type='StepLR', step_size=1, gamma=0.5, by_epoch=True)


def config(folder, schedule=None, **options):
    """A training of two epochs of two steps; dots in options are written as two underscores."""
    changes = {key.replace('__', '.'): value for key, value in options.items()}
    cfg = run_config('mbls/digits', folder, **{**SMALL, **changes})
    if schedule:
        cfg.param_scheduler = schedule
    return cfg


def resume(cfg, start):
    """Build the Runner of a training that goes on, which refuses other settings."""
    resume_from(cfg, str(start))
    return build_runner(cfg)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The work dir of a finished training."""
    folder = tmp_path_factory.mktemp('trained')
    train_and_test(config(folder), test=False)
    return folder


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        ({'optim_wrapper.optimizer.lr': 0.1}, r'optim_wrapper\.optimizer\.lr 0\.005 \(here: 0\.1'),
        ({'optim_wrapper.accumulative_counts': 2}, r'optim_wrapper\.accumulative_counts None'),
        ({'param_scheduler.T_max': 40}, r'param_scheduler\.T_max 30 \(here: 40\)'),
        ({'param_scheduler.end': 40}, r'param_scheduler\.end 30 \(here: 40\)'),
        ({'val_dataloader.dataset.indices': 40}, r'val_dataloader\.dataset\.indices 32'),
        ({'train_cfg.val_interval': 2}, r'train_cfg\.val_interval 1 \(here: 2\)'),
        ({'default_hooks.checkpoint.save_best': 'calibration/ECE'}, r'checkpoint\.save_best'),
        ({'custom_hooks': [dict(type='EMAHook')]}, r'custom_hooks'),
        ({'randomness.seed': 1}, r'randomness\.seed 0 \(here: 1\)'),
        ({'model.head.loss.margin': 4}, r'model\.head\.loss\.margin 8 \(here: 4\)'),
        ({'model.backbone.base_channels': 4}, r'model\.backbone\.base_channels'),
        ({'train_dataloader.collate_fn': dict(type='my_collate')}, r'collate_fn .*my_collate'),
        ({'sync_bn': 'torch'}, r'sync_bn None \(here: torch\)'),
    ],
)
def test_resume_other_setting_refused(options, named, trained, tmp_path):
    for folder in (trained, tmp_path):  # It goes on in its work dir, or in another one.
        before = sorted(folder.iterdir())
        with pytest.raises(UserError, match=named) as error:
            resume(config(folder, **options), trained)
        assert 'load_from' in str(error.value)
        assert sorted(folder.iterdir()) == before


def test_resume_several_other_settings_names_all(trained, run):
    same = [f'{key}={value}' for key, value in SMALL.items()]
    other = ['train_dataloader.batch_size=8', 'optim_wrapper.optimizer.lr=0.1']
    resume = ['train.py', 'mmcalib::mbls/digits.py', '--work-dir', trained, '--resume']
    error = run(*resume, '--cfg-options', *same, *other, code=2)
    assert 'optim_wrapper.optimizer.lr 0.005 (here: 0.1)' in error
    assert 'train_dataloader.batch_size 16 (here: 8)' in error
    error = run(*resume, '--limit', 8, '--cfg-options', *same, code=2)
    assert '--limit None (here: 8)' in error


def test_resume_by_config_other_setting_refused(trained, run, tmp_path):
    """mmengine looks for the checkpoint itself where a config has resume, and no load_from."""
    for name in ('epoch_2.pth', 'last_checkpoint'):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    changes = {**SMALL, 'optim_wrapper.optimizer.lr': 0.1, 'resume': True}
    options = [f'{key}={value}' for key, value in changes.items()]
    arguments = ['mmcalib::mbls/digits.py', '--work-dir', tmp_path, '--cfg-options', *options]
    assert 'lr 0.005 (here: 0.1)' in run('train.py', *arguments, code=2)


@pytest.mark.parametrize('options', [
    {'train_dataloader.num_workers': 1},
    {'train_dataloader.collate_fn': dict(type='pseudo_collate')},
    {'train_dataloader.dataset.data_root': None},
    {'default_hooks.checkpoint.interval': 2},
    {'default_hooks.logger.interval': 1},
])  # fmt: skip
def test_resume_setting_without_effect_allowed(options, trained, tmp_path):
    options = {key: value for key, value in options.items() if value is not None}
    resume(config(tmp_path, **options), trained)


@HOOKS.register_module(force=True)
class MyLogHook(Hook):
    """A hook that the user has written, whose effect on the training is unknown."""

    def __init__(self, project):
        self.project = project


def test_resume_other_hook_of_user_warns(trained, tmp_path):
    """It may only log. A user who mends a hook that broke the training must be able to resume."""
    user_hook = dict(type='MyLogHook', project='mended')
    with pytest.warns(UserWarning, match=r'custom_hooks .*MyLogHook'):
        resume(config(tmp_path, custom_hooks=[user_hook]), trained)
    with_ema = [user_hook, dict(type='EMAHook', momentum=0.1)]
    with pytest.raises(UserError, match='EMAHook'), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        resume(config(tmp_path, custom_hooks=with_ema), trained)


@pytest.mark.parametrize(
    ('schedule', 'end'),
    [
        (None, 30),  # The config has a schedule with an end.
        # These end with the training.
        ([STEP, dict(type='LinearLR', start_factor=0.1, end=1, by_epoch=True)], None),
        (dict(type='CosineAnnealingLR', T_max=3, by_epoch=True), None),
        (dict(STEP, convert_to_iter_based=True), None),
    ],
)
def test_resume_more_epochs_equals_uninterrupted(schedule, end, tmp_path):
    train_and_test(config(tmp_path / 'whole', schedule, train_cfg__max_epochs=5), test=False)
    train_and_test(config(tmp_path / 'parts', schedule), test=False)
    for epochs in (3, 5):
        cfg = config(tmp_path / 'parts', schedule, train_cfg__max_epochs=epochs)
        resume_from(cfg, 'auto')
        train_and_test(cfg, test=False)
    whole = load_file(str(tmp_path / 'whole/epoch_5.pth'))
    parts = load_file(str(tmp_path / 'parts/epoch_5.pth'))
    for name, value in whole['state_dict'].items():
        assert torch.equal(value, parts['state_dict'][name]), name
    training = parts['meta']['facts']['training']
    assert training == whole['meta']['facts']['training']
    assert training['train_cfg']['max_epochs'] == 5
    if end:
        assert training['param_scheduler']['end'] == end


def with_end(schedule, end):
    """Return a schedule, or a list of one, that ends with an epoch."""
    if isinstance(schedule, list):
        return [dict(part, end=end) for part in schedule]
    return dict(schedule, end=end)


@pytest.mark.parametrize('schedule', [POLY, [POLY], dict(type='CosineAnnealingLR', by_epoch=True)])
def test_resume_more_epochs_keeps_schedule_of_former_length(schedule, tmp_path, capsys):
    """A schedule for more epochs would have differed from the first step on."""
    train_and_test(config(tmp_path, schedule), test=False)
    last_lr = load_file(str(tmp_path / 'epoch_2.pth'))['optimizer']['param_groups'][0]['lr']
    for epochs in (3, 4):
        cfg = config(tmp_path, schedule, train_cfg__max_epochs=epochs)
        resume_from(cfg, 'auto')
        train_and_test(cfg, test=False)
        assert 'param_scheduler' in capsys.readouterr().out
    content = load_file(str(tmp_path / 'epoch_4.pth'))
    recorded_schedule = content['meta']['facts']['training']['param_scheduler']
    if isinstance(recorded_schedule, list):
        (recorded_schedule,) = recorded_schedule
    assert recorded_schedule['end'] == 2
    assert content['optimizer']['param_groups'][0]['lr'] == last_lr
    # A config may name the end of the schedule, but no other one.
    resume(config(tmp_path, with_end(schedule, 2)), tmp_path)
    with pytest.raises(UserError, match=r'param_scheduler.*end 2 \(here: 9\)'):
        resume(config(tmp_path, with_end(schedule, 9)), tmp_path)


def test_resume_checkpoint_of_other_tool_compares_nothing(trained, tmp_path):
    content = load_file(str(trained / 'epoch_2.pth'))
    del content['meta']['facts']
    torch.save(content, tmp_path / 'epoch_2.pth')
    resume(config(tmp_path, optim_wrapper__optimizer__lr=0.1), 'auto')


def test_resume_checkpoint_of_0_4_own_collate_fn_allowed(trained, tmp_path):
    """0.4 did not write the collate_fn into its checkpoints."""
    content = load_file(str(trained / 'epoch_2.pth'))
    training = content['meta']['facts']['training']
    for data in (training['train_dataloader']['dataset'], training['selection']['on']):
        del data['content_digest']
    torch.save(content, tmp_path / 'epoch_2.pth')
    resume(config(tmp_path, train_dataloader__collate_fn=dict(type='my_collate')), 'auto')


@pytest.mark.parametrize('is_cascade', [True, False])
def test_resume_checkpoint_of_0_4_several_losses_compares_each(is_cascade, tmp_path):
    """0.4 took the first loss for the main one, and named those that are unlike it."""
    cross_entropy = dict(type='CrossEntropyLoss', avg_non_ignore=True)
    mbls = dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)
    cfg = run_config('ce/digit_scenes', tmp_path)
    head = cfg.model.decode_head
    if is_cascade:
        path = 'model.decode_head.{}.loss_decode'
        cfg.model.decode_head = [
            dict(head, loss_decode=cross_entropy),
            dict(head, loss_decode=cross_entropy),
            dict(head, loss_decode=mbls),
        ]
        others = {path.format(2): mbls}
    else:
        path = 'model.decode_head.loss_decode.{}'
        head.loss_decode = [cross_entropy, mbls]
        others = {path.format(1): mbls}
    facts = config_facts(cfg, processes=1)
    facts['loss'] = cross_entropy
    facts['training']['other_losses'] = others
    earlier = checkpoint_from_content({'state_dict': {}, 'meta': {'facts': facts}}, 'earlier.pth')
    check_settings(earlier, config_facts(cfg), cfg)
    last_key = max(others)
    cfg.merge_from_dict({f'{last_key}.margin': 4})
    with pytest.raises(UserError, match=rf'training, {last_key}\.margin 8\.0 \(here: 4\): resume'):
        check_settings(earlier, config_facts(cfg), cfg)
