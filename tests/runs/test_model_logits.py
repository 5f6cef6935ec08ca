"""Gathering logits: what is drawn, and that they are the ones behind the prediction."""

import pytest
import torch
from tiny_models import classifier, fcn_head, images, scenes, segmentor

from mmcalib.runs.model_logits import _Lowest, gather, passes, predictor

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)
BINARY = fcn_head(2, out_channels=1, threshold=0.3)


def everything(model, loader):
    logits, labels = zip(*passes(model, loader)(), strict=True)
    return torch.cat(logits), torch.cat(labels)


def test_a_classifiers_logits():
    model, loader = classifier(LINEAR), images()
    sample = gather(model, loader)
    assert sample.is_everything and sample.num_images == 12
    assert sample.images.tolist() == list(range(12))
    with torch.no_grad():
        expected = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    torch.testing.assert_close(sample.logits, expected)
    assert sample.labels.tolist() == [int(s.gt_label) for s in loader.dataset]
    torch.testing.assert_close(everything(model, loader)[0], expected)


def test_a_segmentors_logits():
    model, loader = segmentor(fcn_head()), scenes()
    sample = gather(model, loader)
    with torch.no_grad():
        evaluated = [s for batch in loader for s in model.val_step(batch)]
    valid = [s.gt_sem_seg.data[0] != 255 for s in evaluated]
    expected = torch.cat([s.seg_logits.data[:, v].T for s, v in zip(evaluated, valid, strict=True)])
    torch.testing.assert_close(sample.logits, expected)
    assert sample.population == sum(int(v.sum()) for v in valid)


def test_a_binary_segmentors_logits_are_from_before_the_sigmoid():
    model, loader = segmentor(BINARY), scenes(num_classes=2)
    with torch.no_grad():  # so large that the sigmoid is exactly 1
        model.decode_head.conv_seg.weight *= 40
    with predictor(model) as predict:
        (first, _) = predict(loader[0])
    probs = first.sample['seg_logits']['data']
    assert (probs == 1).any() and first.logits.abs().max() > 40
    assert first.logits.shape == probs.shape == (1, 13, 17)
    torch.testing.assert_close(first.logits.sigmoid(), probs)
    predicted = first.sample['pred_sem_seg']['data']
    assert torch.equal(predicted.bool(), probs > 0.3)


@pytest.mark.parametrize('batch_size', [1, 4])
def test_the_draw(batch_size):
    model = segmentor(fcn_head())
    one = gather(model, scenes(), num_samples=50)
    assert len(one.labels) == 50 and not one.is_everything
    other = gather(model, scenes(batch_size=batch_size), num_samples=50)
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.images, other.images)
    assert one.images.tolist() == sorted(one.images.tolist())
    again = gather(model, scenes(), num_samples=50, seed=1)
    assert not torch.equal(one.logits, again.logits)


def test_every_prediction_is_as_likely():
    counts = torch.zeros(60)
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        lowest = _Lowest(12)
        for image, size in enumerate((10, 20, 30)):
            rows = torch.arange(60).split((10, 20, 30))[image]
            priority = torch.rand(size, generator=generator, dtype=torch.float64)
            lowest.add(priority, rows[:, None].float(), rows, image)
        logits, labels, images = lowest.result()
        assert labels.tolist() == sorted(logits[:, 0].tolist()) and len(labels) == 12
        assert torch.equal(images, torch.bucketize(labels, torch.tensor([9, 29])))
        counts[labels] += 1
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), atol=0.04, rtol=0)


def test_memory_stays_flat(monkeypatch):
    most = 0
    add = _Lowest.add

    def watch(self, *arguments):
        nonlocal most
        add(self, *arguments)
        most = max(most, sum(len(part[0]) for part in self.parts))

    monkeypatch.setattr(_Lowest, 'add', watch)
    gather(segmentor(fcn_head()), scenes(n=12), num_samples=30)
    assert most <= 60


def test_the_model_is_left_as_it_was():
    for model, loader in (
        (segmentor(BINARY), scenes(num_classes=2)),
        (classifier(LINEAR), images()),
    ):
        model.train()
        gather(model, loader)
        assert model.training and 'postprocess_result' not in vars(model)
        assert not any(module._forward_hooks for module in model.modules())


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='no valid prediction in 2 images'):
        loader = scenes(n=2)
        for sample in loader.dataset:
            sample.gt_sem_seg.data[:] = 255
        gather(segmentor(fcn_head()), loader)
    with pytest.raises(ValueError, match=r'logits of sample 0 .*NaN'):
        model = classifier(LINEAR)
        model.head.fc.weight.data[0] = float('nan')
        gather(model, images())
    with pytest.raises(ValueError, match=r'0\.jpg has .* labels outside \[0, 4\)'):
        gather(segmentor(fcn_head()), scenes(num_classes=9))
    with pytest.raises(TypeError, match='neither'), predictor(torch.nn.Linear(2, 2)):
        pass
