"""Figures of published networks, read from files in the layout of their repositories."""

import json
import runpy

import numpy as np
import pytest
from commands import ROOT, run_in_process

import mmcalib

NUM_IMAGES = 600
PAGE = 'Before.\n\n<!-- table: networks -->\n\nold\n\n<!-- end -->\n\n<!-- version -->\n?\n'


@pytest.fixture
def folder(tmp_path):
    """Folder with an ImageNet network, a CIFAR network and one of the reader's own."""
    rng = np.random.default_rng(0)
    conf = rng.uniform(0.5, 1.0, NUM_IMAGES).astype(np.float32)
    labels = rng.integers(0, 1000, NUM_IMAGES)
    correct = rng.uniform(size=NUM_IMAGES) < conf - 0.1
    # The most probable of the five classes is not the first.
    classes = np.zeros((NUM_IMAGES, 5), int)
    classes[:, 3] = np.where(correct, labels, (labels + 1) % 1000)
    probs = np.zeros((NUM_IMAGES, 5), np.float32)
    probs[:, 3] = conf
    networks = tmp_path / 'benchmarking-keras-pytorch' / 'keras_imagenet'
    label_folder = tmp_path / 'label-errors' / 'original_test_labels'
    cifar = tmp_path / 'calibration-framework' / 'records' / 'cifar10'
    own_networks = tmp_path / 'own'
    for path in (networks, label_folder, cifar, own_networks):
        path.mkdir(parents=True)
    np.save(networks / 'small_net_keras_imagenet_top5preds.npy', classes)
    np.save(networks / 'small_net_keras_imagenet_top5probs.npy', probs)
    np.save(label_folder / 'imagenet_val_set_original_labels.npy', labels)
    logits = 4 * rng.standard_normal((NUM_IMAGES, 10))
    cifar_probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    tempered = np.exp(logits / 4) / np.exp(logits / 4).sum(axis=1, keepdims=True)
    cifar_labels = (tempered.cumsum(axis=1) < rng.uniform(size=(NUM_IMAGES, 1))).sum(axis=1)
    np.savez(cifar / 'net-cifar-10.npz', predictions=cifar_probs, ground_truth=cifar_labels)
    np.savez(own_networks / 'mine.npz', probs=cifar_probs, labels=cifar_labels)
    return tmp_path, 100 * (conf.astype(float).mean() - correct.mean())


def test_published_writes_figures_and_tables_of_each_network(folder):
    path, gap = folder
    out = path / 'out'
    out.mkdir()
    (out / 'published.md').write_text(PAGE)
    arguments = [path, '--out', out, '--splits', '2', '--fit-splits', '2']
    run_in_process('benchmarks/published.py', *arguments)
    figures = json.loads((out / 'published.json').read_text())
    networks = {row['name']: row for row in figures['networks']}
    assert set(networks) == {'small_net', 'mine'}
    assert networks['small_net']['gap'] == pytest.approx(gap, abs=1e-4)
    assert networks['small_net']['gap_low'] < gap < networks['small_net']['gap_high']
    assert networks['small_net']['platt_ECE'] < networks['small_net']['ECE']
    scalings = {row['method']: row for row in figures['scalings']}
    assert scalings['temperature']['NLL'] < scalings['none']['NLL'] - 0.1
    page = (out / 'published.md').read_text()
    assert page.startswith('Before.') and f'Measured with {mmcalib.__version__}.' in page
    assert 'old' not in page and '| mine' in page
    assert (out / 'published.png').stat().st_size > 1000


def test_published_empty_folder_names_what_to_clone(tmp_path, capsys):
    run_in_process('benchmarks/published.py', tmp_path, code=2)
    assert 'benchmarking-keras-pytorch' in capsys.readouterr().err


def test_published_page_has_the_tables_of_its_json():
    published = runpy.run_path(str(ROOT / 'tools/benchmarks/published.py'))
    results = ROOT / 'docs/results'
    figures = json.loads((results / 'published.json').read_text())
    page = (results / 'published.md').read_text(encoding='utf-8')
    assert published['replace_tables'](page, published['make_tables'](figures)) == page
