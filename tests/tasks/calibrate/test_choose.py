"""The choice of a method: who wins where the truth is known."""

import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from overconfident import draw_labels

from mmcalib.posthoc.choose import NONE, choose_method, methods_for
from mmcalib.posthoc.draw import DrawnPredictions


def predictions(change, *, n=6000, num_classes=4, of_image=1, seed=0):
    """Logits whose truth is that of `change`, applied to them."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, num_classes))
    labels = draw_labels(change(logits), rng)
    images = torch.arange(n) // of_image
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    return DrawnPredictions(logits, labels, images, n, n // of_image)


def choose(drawn, **options):
    fold_of = torch.arange(drawn.num_images) % 5
    methods = methods_for(
        drawn.logits.shape[1], groups=drawn.num_images, pixels=options.get('pixels', False)
    )
    return choose_method(drawn, fold_of, methods, **{'pixels': False, **options})


def test_calibrated_logits_are_left_alone():
    chosen, candidates = choose(predictions(lambda z: z))
    assert chosen == NONE and candidates[0]['method'] == NONE


def test_one_temperature():
    chosen, candidates = choose(predictions(lambda z: z / 2.5))
    assert chosen == 'temperature'
    by_name = {c['method']: c for c in candidates}
    assert by_name[NONE]['nll'] > by_name['temperature']['nll'] + 0.1
    assert by_name['temperature']['accuracy'] == by_name[NONE]['accuracy']


def test_a_scale_and_a_shift_of_each_class():
    change = np.array([0.2, 1.5, 0.7, 1.0]), np.array([2.0, -1.0, 0.0, 0.0])
    chosen, _ = choose(predictions(lambda z: z * change[0] + change[1]))
    assert chosen == 'vector'


def test_a_sigmoid():
    chosen, _ = choose(predictions(lambda z: 0.3 * z - 1, num_classes=1))
    assert chosen != NONE and 'vector' in methods_for(1, groups=100, pixels=False)


def test_images_and_not_pixels_are_the_observations():
    """Twenty pixels of an image that are all the same are known as well as one."""
    drawn = predictions(lambda z: z / 1.5, n=200)
    rows = torch.arange(200).repeat_interleave(20)
    copies = DrawnPredictions(drawn.logits[rows], drawn.labels[rows], rows, 4000, 200)
    once, often = ({c['method']: c for c in choose(d)[1]} for d in (drawn, copies))
    for key in ('nll', 'standard_error'):
        assert often['temperature'][key] == pytest.approx(once['temperature'][key], rel=1e-6)
        assert often[NONE][key] == pytest.approx(once[NONE][key], rel=0.3)


def test_the_standard_error_is_that_of_a_loop():
    drawn = predictions(lambda z: z / 2, n=300, of_image=10)
    _, candidates = choose(drawn, pixels=True)
    none, temperature = candidates[0], candidates[1]
    assert temperature['above_best'] < none['above_best']
    # By hand for none against the best, with the folds refitted.
    from mmcalib.posthoc.folds import fit_folds
    from mmcalib.posthoc.methods import SCALERS

    best = min((c for c in candidates if not c['problem']), key=lambda c: c['nll'])['method']
    fold_of = torch.arange(30) % 5
    folds = fit_folds(SCALERS[best](), drawn, fold_of)
    more = []
    for z, y, image in zip(drawn.logits, drawn.labels, drawn.images, strict=True):
        scaled = folds[int(fold_of[image])].transform(z[None])[0]
        more.append((z.logsumexp(0) - z[y] - scaled.logsumexp(0) + scaled[y]).item())
    mean = sum(more) / len(more)
    sums = [sum(m - mean for m in more[10 * i : 10 * i + 10]) for i in range(30)]
    assert none['above_best'] == pytest.approx(mean)
    assert none['standard_error'] == pytest.approx(sum(s**2 for s in sums) ** 0.5 / 300)


def test_mean_iou_is_that_of_a_loop():
    drawn = predictions(lambda z: z, n=200)
    _, candidates = choose(drawn, pixels=True)
    predicted = drawn.logits.argmax(1)
    ious = []
    for k in range(4):
        a, b = predicted == k, drawn.labels == k
        ious.append(((a & b).sum() / (a | b).sum()).item())
    assert candidates[0]['miou'] == pytest.approx(100 * sum(ious) / 4)


def test_what_cannot_be_fitted_is_listed():
    drawn = predictions(lambda z: z, n=50)
    drawn.labels[:] = 2
    chosen, candidates = choose(drawn)
    problems = {c['method']: c['problem'] for c in candidates}
    assert 'all labels have class 2' in problems['vector'] and chosen not in ('vector', 'matrix')


def test_the_tool(tmp_path, monkeypatch, capsys):
    from test_calibrate import write_checkpoint

    monkeypatch.chdir(tmp_path)
    config = ROOT / 'configs/ce/digits.py'
    checkpoint = write_checkpoint(tmp_path / 'ce.pth', config, 'head.fc')
    call_here(
        'calibrate.py', config, checkpoint, '--out', 'out.pth', '--work-dir', 'work', '--method',
        'auto', monkeypatch=monkeypatch,
    )  # fmt: skip
    output = capsys.readouterr().out
    meta = torch.load('out.pth', weights_only=False)['meta']['calibration']
    assert meta['method'] != NONE and 'Cross-validated over 200 images' in output
    assert [c['method'] for c in meta['candidates']][:2] == [NONE, 'temperature']
    calibrated = tmp_path / 'out.pth'
    weights = torch.load(calibrated, weights_only=False)
    del weights['meta']['calibration']
    torch.save(weights, 'as_if_new.pth')
    call_here(
        'calibrate.py', config, 'as_if_new.pth', '--out', 'none.pth', '--work-dir', 'work',
        '--method', 'auto', monkeypatch=monkeypatch,
    )  # fmt: skip
    output = capsys.readouterr().out
    assert 'Nothing was written' in output and not (tmp_path / 'none.pth').exists()
