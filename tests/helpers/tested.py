"""A config of ours, and a test of it, without the command line."""

from commands import ROOT

from mmcalib.runs.checkpoint import checkpoint_of, read_checkpoint
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.evaluation import classes_in, run_test
from mmcalib.runs.model import describe, load, set_model
from mmcalib.runs.runner import build_runner


def config_of(name, folder, **options):
    """A config for a run in a folder that no other run has."""
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict(options)
    cfg.launcher, cfg.work_dir = 'none', str(folder)
    cfg.experiment_name = cfg.visualizer.name = str(folder).replace('/', '_')
    set_loader_defaults(cfg)
    return cfg


def test_checkpoint(cfg, path, **options):
    """Test a checkpoint as tools/test.py does."""
    checkpoints = [read_checkpoint(path)]
    model = set_model(cfg, [cfg], checkpoints, **options)
    runner = build_runner(cfg)
    load(runner.model, checkpoints, classes_in(runner))
    return run_test(runner, model, checkpoints)


def test_weights(runner, **meta):
    """Test the weights that a Runner has."""
    content = {'state_dict': runner.model.state_dict(), 'meta': meta}
    checkpoint = checkpoint_of(content, 'best.pth')
    model = describe([runner.cfg], [checkpoint], ['test'])
    return run_test(runner, model, [checkpoint])


for each in (test_checkpoint, test_weights):
    each.__test__ = False
