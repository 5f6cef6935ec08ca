import pytest
import torch
from mmengine.registry import DATASETS
from posts import write_posts, write_vectors
from tested import run_config, test_checkpoint

from mmcalib.commands.train import train_and_test
from mmcalib.runs.run_config import DATALOADERS
from mmcalib.runs.runner import build_runner


def config(folder):
    """The paper's configuration on tiny posts, for one short epoch."""
    cfg = run_config('mbls/gpool_cnn_20news', folder / 'run', **{'train_cfg.max_epochs': 1})
    for key in DATALOADERS:
        cfg[key].dataset.update(data_root=str(folder / 'data'), num_val=9, length=30)
    cfg.model.backbone.update(vectors=str(folder / 'glove.txt'), embed_dims=6)
    cfg.custom_hooks.append(dict(type='EMAHook'))  # It copies the model.
    return cfg


def test_word_vectors_hook_checkpoint_of_other_words_raises(tmp_path):
    write_posts(tmp_path / 'data')
    write_vectors(tmp_path / 'glove.txt')
    cfg = config(tmp_path)
    metrics = train_and_test(cfg)
    checkpoint = str(tmp_path / 'run/epoch_1.pth')
    words = DATASETS.build(cfg.train_dataloader.dataset).metainfo['words']
    stored = torch.load(checkpoint, weights_only=False)
    assert stored['meta']['dataset_meta']['words'] == words
    for key in ('state_dict', 'ema_state_dict'):
        tables = [stored[key][name] for name in stored[key] if name.endswith('embedding.weight')]
        (table,) = tables
        for word_id, word in enumerate(words, 1):
            expected = {'the': 1, 'group0': 2, 'group1': 3}.get(word, 0)
            assert (table[word_id] == expected).all()

    (tmp_path / 'glove.txt').unlink()  # A test does not read the vectors.
    tested = test_checkpoint(config(tmp_path), checkpoint)
    for key in ('accuracy/top1', 'calibration/ECE'):
        assert tested[key] == metrics[key] >= 0
    for change in ({'seed': 2}, {'protocol': 'bydate'}, {'num_words': 50}):
        cfg = config(tmp_path)
        cfg.test_dataloader.dataset.update(change)
        with pytest.raises(ValueError, match='the checkpoint was trained on other posts'):
            test_checkpoint(cfg, checkpoint)
    with pytest.raises(FileNotFoundError, match=r'glove\.txt.*stanford.*backbone\.vectors'):
        build_runner(config(tmp_path)).train()
