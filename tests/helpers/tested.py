"""Configs of ours, and tests of checkpoints, without the command line."""

from commands import ROOT

from mmcalib.members import Averaging
from mmcalib.runs.checkpoint import checkpoint_from_content, read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.evaluation import load_and_test, run_test
from mmcalib.runs.model import Network, PredictingModel, describe_model, prepare_model
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.runner import build_runner


def run_config(name, folder, **options):
    """Return a config of ours for a run in a folder that no other run has."""
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict(options)
    cfg.launcher = 'none'
    cfg.work_dir = str(folder)
    cfg.experiment_name = cfg.visualizer.name = str(folder).replace('/', '_')
    set_loader_defaults(cfg)
    return cfg


def small_config(folder, name='mbls/digits', **options):
    """Return the config of one epoch on few images; two underscores in an option mean a dot."""
    changes = {
        'train_dataloader.dataset.indices': 16,
        'val_dataloader.dataset.indices': 20,
        'test_dataloader.dataset.indices': 20,
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1,
    }
    changes |= {key.replace('__', '.'): value for key, value in options.items()}
    return run_config(name, folder, **changes)


def test_checkpoint(cfg, path, **options):
    """Test a checkpoint as tools/test.py does."""
    networks = [Network(cfg, read_checkpoint(path))]
    model = prepare_model(cfg, networks, Averaging(members=(), **options))
    return load_and_test(build_runner(cfg), model)


def test_weights(runner, **meta):
    """Test the weights that a Runner has."""
    content = {'state_dict': runner.model.state_dict(), 'meta': meta}
    checkpoint = checkpoint_from_content(content, 'best.pth')
    description = describe_model([Network(runner.cfg, checkpoint)], ['test'])
    return run_test(runner, PredictingModel([checkpoint], description))


# pytest takes their names for those of tests.
test_checkpoint.__test__ = False
test_weights.__test__ = False
