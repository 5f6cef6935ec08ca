"""Checkpoints of overconfident networks for tools/calibrate.py, and what it makes of them."""

import json
import os
import re
from pathlib import Path

import torch
from commands import ROOT
from forked import run_forked
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

from mmcalib.runs.config import load_config

DIGITS = ROOT / 'configs/ce/digits.py'
SCENES = ROOT / 'configs/ce/digit_scenes.py'
# Options for fewer images.
FEW = {
    DIGITS: ['val_dataloader.dataset.indices=60', 'test_dataloader.dataset.indices=60'],
    SCENES: ['val_dataloader.dataset.indices=6', 'test_dataloader.dataset.indices=6'],
}
# An option that makes the validation data those of the test.
SAME = 'val_dataloader.dataset.split=test'
# The tensors of the digits' layer that absorbs a scaling.
SCALED_TENSORS = {'head.fc.weight', 'head.fc.bias'}


def model_and_batch(config, split, num_images):
    """Return the model of a config with random weights, and the first images of a split."""
    cfg = load_config(str(config))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg.model}).eval()
    dataset = DATASETS.build({**cfg[f'{split}_dataloader'].dataset, 'indices': num_images})
    return model, pseudo_collate([dataset[index] for index in range(num_images)])


def write_checkpoint(path, config, layer='head.fc', num_images=200):
    """Write a checkpoint as a training leaves it, of a network that is far too confident.

    Its weights are random, but for those of the last layer: 40 times the solution of ridge
    regression, for which few samples suffice.
    """
    model, batch = model_and_batch(config, 'train', num_images)
    model.init_weights()
    last_layer = model.get_submodule(layer)
    inputs = []
    handle = last_layer.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    with torch.no_grad():
        samples = model.val_step(batch)
    handle.remove()
    features = torch.cat(inputs).movedim(1, -1).flatten(0, -2)
    labels = torch.cat([sample_labels(sample) for sample in samples])
    is_valid = labels != 255
    features = features[is_valid]
    labels = labels[is_valid]
    num_logits = len(last_layer.weight)
    targets = nn.functional.one_hot(labels, max(num_logits, 2)).float() - 0.5
    if num_logits == 1:
        targets = targets[:, 1:]
    features = nn.functional.pad(features, (0, 1), value=1.0)
    gram = features.T @ features + 0.1 * torch.eye(features.shape[1])
    solution = 40 * torch.linalg.solve(gram, features.T @ targets)
    last_layer.weight.data = solution[:-1].T.reshape(last_layer.weight.shape).contiguous()
    last_layer.bias.data = solution[-1]
    meta = {'epoch': 7, 'seed': 3, 'dataset_meta': {}}
    optimizer = {'state': {}, 'param_groups': []}
    torch.save({'state_dict': model.state_dict(), 'optimizer': optimizer, 'meta': meta}, path)
    return path


def sample_labels(sample):
    """Return the labels of a sample of either toolbox, ``(N,)``."""
    return sample.gt_label if 'gt_label' in sample else sample.gt_sem_seg.data.flatten()


def load(path):
    """Return the content of a checkpoint or a JSON file."""
    if Path(path).suffix == '.json':
        return json.loads(Path(path).read_text())
    return torch.load(path, weights_only=False)


def record_in(content):
    """Return the record of the calibration in the content of a checkpoint."""
    return content['meta']['calibration']


def changed_tensors(before, after):
    """Return the keys of the tensors that differ, and check that nothing else does."""
    assert before.keys() == after.keys()
    for key in before.keys() - {'state_dict', 'meta'}:
        assert before[key] == after[key]
    assert {**before['meta'], 'calibration': None} == {**after['meta'], 'calibration': None}
    state_before = before['state_dict']
    state_after = after['state_dict']
    assert list(state_before) == list(state_after)
    changed = set()
    for key, tensor in state_before.items():
        assert tensor.dtype == state_after[key].dtype
        if not torch.equal(tensor, state_after[key]):
            changed.add(key)
    return changed


def read_toolbox_metrics(toolbox, config, checkpoint, *options):
    """Return the metrics that a toolbox's own tool prints."""
    tool = Path(toolbox.__file__).parent / '.mim/tools/test.py'
    tool = os.path.relpath(tool, ROOT / 'tools')
    log = run_forked(tool, config, checkpoint, '--work-dir', 'toolbox', *options, cwd=os.getcwd())
    return {name: float(value) for name, value in re.findall(r'(\w+/\w+): ([\d.]+)', log)}
