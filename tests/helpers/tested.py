"""A config of ours, and a test of it, without the command line."""

from commands import ROOT

from mmcalib.cli.arguments import MeanOptions
from mmcalib.runs.checkpoint import checkpoint_from_content, read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.evaluation import load_and_test, run_test
from mmcalib.runs.model import Network, TestedModel, describe_model, prepare_model
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.runner import build_runner


def config_of(name, folder, **options):
    """A config for a run in a folder that no other run has."""
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict(options)
    cfg.launcher, cfg.work_dir = 'none', str(folder)
    cfg.experiment_name = cfg.visualizer.name = str(folder).replace('/', '_')
    set_loader_defaults(cfg)
    return cfg


def small_config(folder, name='mbls/digits', **options):
    """A training of one epoch on few images; dots in options are written as two underscores."""
    few = {'train': 16, 'val': 20, 'test': 20}
    short = {f'{split}_dataloader.dataset.indices': count for split, count in few.items()}
    short |= {'train_cfg.max_epochs': 1, 'train_cfg.val_interval': 1}
    short |= {key.replace('__', '.'): value for key, value in options.items()}
    return config_of(name, folder, **short)


def test_checkpoint(cfg, path, **options):
    """Test a checkpoint as tools/test.py does."""
    networks = [Network(cfg, read_checkpoint(path))]
    model = prepare_model(cfg, networks, MeanOptions(members=(), **options))
    return load_and_test(build_runner(cfg), model)


def test_weights(runner, **meta):
    """Test the weights that a Runner has."""
    content = {'state_dict': runner.model.state_dict(), 'meta': meta}
    networks = [Network(runner.cfg, checkpoint_from_content(content, 'best.pth'))]
    return run_test(runner, TestedModel(networks, describe_model(networks, ['test'])))


for each in (test_checkpoint, test_weights):
    each.__test__ = False
