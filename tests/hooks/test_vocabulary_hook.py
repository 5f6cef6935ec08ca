from pathlib import Path

import pytest
import torch
from mmengine.registry import DATASETS
from posts import write_posts, write_vectors

from mmcalib.checks import UserError
from mmcalib.models.text_data_preprocessor import most_frequent
from mmcalib.runs.config import DATALOADERS, load_config, set_loader_defaults
from mmcalib.runs.config_checks import check_data
from mmcalib.runs.runner import build_runner, run_test, train_and_test

ROOT = Path(__file__).resolve().parents[2]


def config(tmp_path, **options):
    """The paper's configuration on tiny posts, for one short epoch."""
    if not (tmp_path / 'glove.txt').exists():
        write_posts(tmp_path / 'data')
        write_vectors(tmp_path / 'glove.txt')
    cfg = load_config(str(ROOT / 'configs/mbls/gpool_cnn_20news.py'))
    for key in DATALOADERS:
        cfg[key].dataset.update(data_root=str(tmp_path / 'data'), num_val=9)
    cfg.model.data_preprocessor.length = 30
    cfg.merge_from_dict(
        {
            'model.backbone.vectors': str(tmp_path / 'glove.txt'),
            'train_cfg.max_epochs': 1,
            **options,
        }
    )
    cfg.launcher = 'none'
    cfg.work_dir = str(tmp_path / 'run')
    set_loader_defaults(cfg)
    return cfg


def test_checkpoint(tmp_path):
    metrics = train_and_test(config(tmp_path))
    assert metrics['accuracy/top1'] >= 0 and 'calibration/ECE' in metrics
    checkpoint = str(tmp_path / 'run/epoch_1.pth')

    # Neither the vectors nor the training posts are needed to test it.
    (tmp_path / 'glove.txt').write_text('')
    options = {'model.backbone.vectors': None, 'model.backbone.embed_dims': 6}
    cfg = config(tmp_path, **options, load_from=checkpoint)
    runner = build_runner(cfg)
    assert not runner.model.data_preprocessor.words
    tested = run_test(runner, checkpoint)
    assert runner.model.data_preprocessor.words[0] == 'the'
    assert runner.model.backbone.embedding.weight[1, 0] == 1
    assert tested['accuracy/top1'] == metrics['accuracy/top1']

    # It is fitted on the training posts alone.
    train = DATASETS.build(cfg.train_dataloader.dataset)
    texts = [train.get_data_info(index)['text'] for index in range(len(train))]
    assert runner.model.data_preprocessor.words == most_frequent(texts, 2000)

    # Another split would test posts of the training.
    for change in ({'seed': 2}, {'protocol': 'bydate'}):
        cfg = config(tmp_path, **options, load_from=checkpoint)
        cfg.test_dataloader.dataset.update(change)
        with pytest.raises(ValueError, match=r'the checkpoint was trained on 87 posts of protocol'):
            build_runner(cfg).test()

    # mmengine would go on with the weights it has.
    with pytest.raises(ValueError, match=r'2000 words of 6 numbers, but .* embed_dims=7'):
        build_runner(
            config(tmp_path, **{**options, 'model.backbone.embed_dims': 7}, load_from=checkpoint)
        ).test()


def test_a_loaded_vocabulary_wins_over_a_fitted_one(tmp_path):
    train_and_test(config(tmp_path), test=False)
    path = str(tmp_path / 'run/epoch_1.pth')
    checkpoint = torch.load(path, weights_only=False)
    stored = checkpoint['state_dict']['data_preprocessor.vocabulary']
    stored[:3] = torch.tensor(list(b'our'))  # for `the`
    torch.save(checkpoint, path)
    runner = build_runner(config(tmp_path, resume=True, **{'train_cfg.max_epochs': 2}))
    runner.train()
    assert runner.model.data_preprocessor.words[0] == 'our'


def test_a_model_average_has_the_vocabulary_too(tmp_path):
    cfg = config(tmp_path)
    cfg.custom_hooks.append(dict(type='EMAHook'))
    assert train_and_test(cfg)['accuracy/top1'] >= 0


def test_other_preprocessors_are_refused(tmp_path):
    cfg = config(tmp_path)
    cfg.model.data_preprocessor = dict(type='ClsDataPreprocessor')
    with pytest.raises(UserError, match=r'TextDataPreprocessor.*got ClsDataPreprocessor'):
        build_runner(cfg).train()


def test_missing_vectors_are_named_before_anything_is_built(tmp_path):
    cfg = config(tmp_path, **{'model.backbone.vectors': str(tmp_path / 'nowhere.txt')})
    with pytest.raises(FileNotFoundError, match=r'backbone\.vectors.*nowhere\.txt.*stanford'):
        check_data(cfg, DATALOADERS)
    cfg.model.backbone.embed_dims = 6
    check_data(cfg, DATALOADERS)
