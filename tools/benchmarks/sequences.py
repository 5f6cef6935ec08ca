"""Methods of calibration fitted to frames of a few videos, and tested on other images.

    python tools/benchmarks/sequences.py CONFIG CHECKPOINT --out FILE.json

A video is made of an image of the validation split: 32 crops along a closed path, each of 0.6 of
its height and width, of the model's map of logits. The test images are whole. Each draw of videos
is fitted and compared by `--method auto` in three ways: with images taken for
independent; as the tool does, which finds the neighbours alike; and with the videos named by
`--groups`. `--videos 0` takes the validation images as they are. `--orders N` counts instead how
often neighbours are found alike: in N draws of videos, and in N orders of the independent images.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from methods import write
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from mmcalib.metrics import measure
from mmcalib.posthoc import SCALERS, TemperatureScaler
from mmcalib.posthoc.draw import DrawnPredictions, draw_predictions, predictor
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.samples.reading import label_maps
from mmcalib.tasks.calibrate.choose import NONE, choose_method, methods_for
from mmcalib.tasks.calibrate.folds import folds_of_groups, independent_groups, neighbours_alike
from mmcalib.tasks.predict.load_model import load_predicting_model

FRAMES, SIDE, IGNORED = 32, 0.6, 255


def frames(logits, labels, pixels, generator):
    """Return the logits, labels and frames of pixels of one image's video."""
    size = torch.tensor(labels.shape)
    side = (SIDE * size).long()
    phase = 2 * torch.pi * torch.rand(2, generator=generator)
    found = []
    for frame in range(FRAMES):
        angle = 2 * torch.pi * frame / FRAMES * torch.tensor([1.0, 2.0]) + phase
        top, left = ((size - side) * (1 + angle.sin()) / 2).long().tolist()
        crop = (..., slice(top, top + side[0]), slice(left, left + side[1]))
        own = labels[crop].flatten()
        valid = (own != IGNORED).nonzero()[:, 0]
        rows = valid[torch.randperm(len(valid), generator=generator)[:pixels]]
        z = logits[crop].flatten(1).T[rows]
        found.append((z.clone(), own[rows], torch.full((len(rows),), frame)))
    return [torch.cat(part) for part in zip(*found, strict=True)]


def videos_of(model, loader, pixels):
    """Return a video of each image that one class does not fill to nine tenths."""
    generator, found = torch.Generator().manual_seed(0), []
    with predictor(model) as predict:
        for batch in loader:
            for image in predict(batch):
                labels = label_maps(image.sample, image.name)[1].cpu().long()
                valid = labels[labels != IGNORED]
                if len(valid) and valid.bincount().max() < 0.9 * len(valid):
                    found.append(frames(image.logits.cpu(), labels, pixels, generator))
    return found


def drawn_from(videos):
    """Return the predictions of some videos, one after the other, and the video of each frame."""
    parts = [(z, y, frame + FRAMES * place) for place, (z, y, frame) in enumerate(videos)]
    columns = [torch.cat(part) for part in zip(*parts, strict=True)]
    count = FRAMES * len(videos)
    drawn = DrawnPredictions(*columns, population=len(columns[0]), num_images=count)
    return drawn, torch.arange(len(videos)).repeat_interleave(FRAMES)


def figures(probs, labels):
    """Return what is compared."""
    conf, predicted = probs.max(dim=1)
    return {
        'calibration/NLL': measure(probs, labels, 'NLL'),
        'calibration/ECE': measure(metrics='ECE', conf=conf, correct=predicted == labels),
    }


def some_videos(videos, count, seed):
    """Return the predictions of so many videos, and the video of each frame."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(videos), generator=generator)[:count].tolist()
    return drawn_from([[column[::count] for column in videos[place]] for place in order])


def found_alike(images, videos, count, orders):
    """Return in how many draws, or orders of independent images, neighbours are alike."""
    found = 0
    for seed in range(orders):
        if count:
            drawn = some_videos(videos, count, seed)[0]
        else:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(images.num_images, generator=generator)
            drawn = replace(images, images=order[images.images])
        found += neighbours_alike(drawn)
    return found


def choose(drawn, group_of, seed, *, every=False):
    """Return what `auto` takes, and the cross-fitted NLL of what it compares."""
    count = int(group_of.max()) + 1
    size = drawn.logits.shape[1]
    methods = methods_for(size, groups=10**9 if every else count, pixels=True)
    folds = folds_of_groups(count, seed=seed)
    chosen, candidates = choose_method(drawn, folds, methods, pixels=False)
    return chosen, {each['method']: each['nll'] for each in candidates if not each['problem']}


def compare(drawn, video_of, test, seed):
    """Return the NLL of methods cross-fitted over images, test figures, and what `auto` takes."""
    images = torch.arange(drawn.num_images)
    ways = {'auto, all images independent': (drawn, images)}
    ways['auto'] = independent_groups(drawn, images)
    if video_of is not None and len(video_of.unique()) > 1:
        named = replace(drawn, images=video_of[drawn.images])
        ways['auto --groups'] = independent_groups(named, video_of[::FRAMES].unique())
    chosen, fitted = {}, None
    for way, (by_group, group_of) in ways.items():
        chosen[way], found = choose(by_group, group_of, seed, every=fitted is None)
        fitted = fitted or {method: {'calibration/NLL': nll} for method, nll in found.items()}
    tested = {}
    for method in fitted:
        scaler = TemperatureScaler.from_parameters({'temperature': 1.0})
        scaler = scaler if method == NONE else drawn.fit(SCALERS[method]())
        tested[method] = figures(scaler.predict_proba(test.logits), test.labels)
    return fitted, tested | {way: tested[method] for way, method in chosen.items()}, chosen


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--videos', type=int, nargs='+', default=[0, 1, 4, 12], metavar='N')
    parser.add_argument('--draws', type=int, default=3, help='of so many videos')
    parser.add_argument('--samples', type=int, default=6000, help='pixels to fit and to test on')
    parser.add_argument('--orders', type=int, default=0, metavar='N', help='see above')
    parser.add_argument('--out', metavar='FILE.json')
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg = load_config(args.config)
    set_loader_defaults(cfg)
    init_default_scope(cfg.default_scope)
    model, _ = load_predicting_model(cfg, [args.checkpoint])
    val, test = (Runner.build_dataloader(cfg[f'{s}_dataloader'], seed=0) for s in ('val', 'test'))
    others = draw_predictions(model, test, num_samples=3 * args.samples)
    videos = videos_of(model, val, pixels=args.samples // FRAMES)
    images = draw_predictions(model, val, num_samples=args.samples)
    for count in args.videos:
        if args.orders:
            found = found_alike(images, videos, count, args.orders)
            print(f'{count} videos: alike in {found} of {args.orders}')
            continue
        found = defaultdict(list)
        draws = args.draws if count else 1
        for seed in range(draws):
            drawn, video_of = some_videos(videos, count, seed) if count else (images, None)
            fitted, tested, chosen = compare(drawn, video_of, others, seed)
            for kind, rows in (('cross-fitted', fitted), ('test', tested)):
                for method, row in rows.items():
                    found[f'{method}, {kind}'].append(row)
            nll = {way: f'{tested[way]["calibration/NLL"]:.4f}' for way in chosen}
            print(count, seed, {way: (method, nll[way]) for way, method in chosen.items()})
        name = f'{Path(args.config).stem}, {count or "no"} videos'
        rows = []
        for label, each in found.items():
            if len(each) == draws:  # else a class was missing in one of them
                metrics = [{'metrics': row} for row in each]
                rows.append({'label': f'{name}, {label}', 'runs': metrics})
                print(f'  {label}', {k: f'{sum(r[k] for r in each) / draws:.4f}' for k in each[0]})
        if args.out:
            write(args.out, [{'name': name, 'rows': rows}])


if __name__ == '__main__':
    main()
