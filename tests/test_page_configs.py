"""The configs, losses and metrics that how-tos print can be read and run."""

import re
import runpy

import pytest
import torch
from commands import ROOT
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope

from mmcalib.losses import CalibrationLoss, CombinedLoss
from mmcalib.runs.config import load_config, use_evaluation

SIZE = 8


def configs_of(page):
    """Return the code blocks of a page that inherit a config of a toolbox."""
    text = (ROOT / 'docs' / page).read_text('utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    return [block for block in blocks if re.search(r"^_base_ = 'mm(seg|pretrain)::", block, re.M)]


PAGES = ['howto/auxiliary_heads.md', 'howto/choose_a_margin.md', 'howto/cityscapes_on_4_gpus.md']
CONFIGS = [
    pytest.param(block, id=f'{page}-{number}')
    for page in PAGES
    for number, block in enumerate(configs_of(page))
]


def segmentation_losses(head):
    """Return the losses of a decode head, and the logits, drawn at random, that they are of."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    labels = torch.randint(head.num_classes, (1, SIZE, SIZE))
    labels[..., 0] = 255
    sample = SegDataSample()
    sample.set_data({'gt_sem_seg': PixelData(data=labels)})
    logits = torch.randn(1, head.num_classes, SIZE // 2, SIZE // 2, requires_grad=True)
    pair = type(head).__name__ == 'DDRHead'
    losses = head.loss_by_feat((logits, logits) if pair else logits, [sample])
    return {key: value for key, value in losses.items() if 'loss' in key}, logits


@pytest.mark.parametrize('text', CONFIGS)
def test_config_of_a_page(text, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / 'own.py'
    path.write_text(text, encoding='utf-8')
    cfg = load_config(str(path))
    init_default_scope(cfg.default_scope)
    keys = [key for key in ('head', 'decode_head', 'auxiliary_head') if key in cfg.model]
    ours = []
    for key in keys:
        settings = cfg.model[key]
        if 'norm_cfg' in settings:
            settings.norm_cfg.type = 'BN'
        head = MODELS.build(settings)
        ours += [m for m in head.modules() if isinstance(m, (CalibrationLoss, CombinedLoss))]
        if key == 'head':
            logits = torch.randn(3, head.num_classes, requires_grad=True)
            losses = {'loss': head.loss_module(logits, torch.tensor([0, 1, 2]))}
        else:
            losses, logits = segmentation_losses(head)
        total = sum(losses.values())
        total.backward()
        assert total.isfinite() and logits.grad.abs().sum() > 0
    assert ours
    for hook in cfg.get('custom_hooks') or []:
        HOOKS.build(hook)
    if 'CalibrationMetric' in text:
        Evaluator(cfg.val_evaluator)


def test_the_pages_have_configs():
    assert [len(configs_of(page)) for page in PAGES] == [7, 1, 1]


def files_of(page):
    """Return the code blocks of a page that begin with the name of a file, by that name."""
    text = (ROOT / 'docs' / page).read_text('utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    named = ((re.match(r'# ([\w.]+\.py)\n', block), block) for block in blocks)
    return {match.group(1): block for match, block in named if match}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the files of a page into a folder, which is then the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(page):
        for name, text in files_of(page).items():
            (tmp_path / name).write_text(text, encoding='utf-8')
        return tmp_path

    return write


@pytest.mark.parametrize(
    ('name', 'labels'), [('own_classifier', 'gt_label'), ('own_segmentor', 'gt_sem_seg')]
)
def test_a_config_of_ones_own(written, name, labels):
    folder = written('howto/own_config.md')
    runpy.run_path(str(folder / 'make_data.py'))
    cfg = load_config(f'{name}.py')
    init_default_scope(cfg.default_scope)
    if 'data_preprocessor' in cfg:
        cfg.model.data_preprocessor = dict(type='ClsDataPreprocessor', **cfg.data_preprocessor)
    model = MODELS.build(cfg.model)
    for split, count in (('train', 24), ('val', 12), ('test', 12)):
        dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
        assert len(dataset) == count
    samples = [dataset[0], dataset[4]]
    batch = {key: [sample[key] for sample in samples] for key in samples[0]}
    assert all(labels in sample for sample in batch['data_samples'])
    losses = model.train()(**model.data_preprocessor(batch, training=True), mode='loss')
    assert sum(value for key, value in losses.items() if 'loss' in key).isfinite()
    Evaluator(cfg.test_evaluator)


def test_a_loss_and_a_metric_of_ones_own(written):
    written('howto/own_loss_or_metric.md')
    import my_losses
    import my_metrics

    torch.manual_seed(0)
    logits, labels = torch.randn(6, 10, dtype=torch.float64), torch.arange(6)
    loss = my_losses.PolyLoss(epsilon=2.0)
    rows = -logits.log_softmax(dim=1)[range(6), labels]
    expected = rows + 2 * (1 - (-rows).exp())
    assert torch.isclose(loss(logits, labels), expected.mean())
    text = (ROOT / 'docs/howto/own_loss_or_metric.md').read_text('utf-8')
    exec(re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)[-1], {})
    with pytest.raises(ValueError, match='epsilon'):
        my_losses.PolyLoss(epsilon=-2.0)

    scores = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.3, 0.7]])
    truth = torch.tensor([[0], [1], [1], [1]])
    samples = [
        dict(pred_score=score, gt_label=label) for score, label in zip(scores, truth, strict=True)
    ]
    metric = my_metrics.ConfidentErrors(threshold=0.9)
    metric.process({}, samples)
    assert metric.evaluate(size=4) == {'confident/errors': 25.0}


def test_the_files_of_the_pages():
    assert list(files_of('howto/own_config.md')) == [
        'make_data.py',
        'own_classifier.py',
        'own_segmentor.py',
    ]
    names = ['my_losses.py', 'my_metrics.py', 'my_config.py']
    assert list(files_of('howto/own_loss_or_metric.md')) == names


SNIPPETS = {
    'howto/train.md': 'mbls/digits.py',
    'howto/choose_a_margin.md': 'mbls/digits.py',
    'reference/losses.md': 'mbls/digits.py',
    'concepts/temperature_and_scalings.md': 'mbls/digit_scenes.py',
}


@pytest.mark.parametrize('page', SNIPPETS)
def test_lines_for_a_config(page, tmp_path):
    text = (ROOT / 'docs' / page).read_text('utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    keys = r'^(custom_hooks|default_hooks|model|evaluations) = '
    chosen = [b for b in blocks if re.search(keys, b, re.M) and '_base_' not in b]
    assert chosen
    for block in chosen:
        path = tmp_path / 'own.py'
        path.write_text(f"_base_ = '{ROOT}/configs/{SNIPPETS[page]}'\n{block}", encoding='utf-8')
        cfg = load_config(str(path))
        init_default_scope(cfg.default_scope)
        MODELS.build({**cfg.model, 'data_preprocessor': None})
        for hook in (*(cfg.get('custom_hooks') or ()), cfg.default_hooks.checkpoint):
            HOOKS.build(hook)
        if 'evaluations' in block:
            cfg.work_dir = str(tmp_path)
            use_evaluation(cfg, 'paper')
            Evaluator(cfg.test_evaluator)
