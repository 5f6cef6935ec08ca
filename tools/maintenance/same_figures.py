"""Run 22 commands of a checkout on the embedded data, and compare the files of two checkouts.

``run CHECKOUT FOLDER`` runs ``python CHECKOUT/tools/X.py`` with tiny trainings, each command into
``FOLDER/COMMAND``, in about four minutes on one core. ``compare BEFORE AFTER`` prints what differs
in JSON, CSV, ``.npz``, Markdown and text files, in the pixels of ``.png`` files, the tensors and
facts of checkpoints, and the predictions of ``.onnx`` files. It leaves out dates, versions, and the
digests in the names of model folders. Exit status 1 means that something differs.

Examples:
  git worktree add ../before COMMIT
  same_figures.py run ../before /tmp/before
  same_figures.py run . /tmp/after && same_figures.py compare /tmp/before /tmp/after
  same_figures.py compare /tmp/before /tmp/after --only test_plain --ignore told_by classes

To check a few commands sooner, let them use the trainings of the other checkout:
  cp -r /tmp/before /tmp/after
  same_figures.py run . /tmp/after --only sweep robustness
  same_figures.py compare /tmp/before /tmp/after --only sweep robustness
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FEW = """
train_cfg = dict(max_epochs={epochs}, val_interval={interval})
train_dataloader = dict(dataset=dict(indices={train}))
val_dataloader = dict(dataset=dict(indices={test}))
test_dataloader = dict(dataset=dict(indices={test}))
param_scheduler = dict(T_max={epochs}, end={epochs})
"""
FILES = """
test_dataloader = dict(dataset=dict(_delete_=True, {dataset}, pipeline=[
    dict(type='LoadImageFromFile', color_type='grayscale'),
    dict(type='Normalize', mean=[0.0], std=[255.0], to_rgb=False),
    {annotations}dict(type='{pack}')]))
"""
OOD = """
_base_ = 'digits.py'
photographs = dict(type='CustomDataset', data_root='images/photographs', pipeline=[
    dict(type='LoadImageFromFile', color_type='grayscale'),
    dict(type='Resize', scale=8, interpolation='area'),
    dict(type='Normalize', mean=[0.0], std=[255.0], to_rgb=False),
    dict(type='PackInputs')])
test_dataloader = dict(dataset=dict(
    _delete_=True, type='WithOODSets', dataset=dict(
        type='Digits', split='test', indices=100, pipeline=[dict(type='PackInputs')]),
    far=dict(photographs=photographs)))
test_evaluator = [dict(type='OODMetric', scores=['max_probability', 'energy'])]
custom_hooks = [dict(type='KeepLogitsHook')]
"""
CONFIGS = {
    'digits.py': "_base_ = 'mmcalib::mbls/digits.py'\n"
    + FEW.format(epochs=2, interval=1, train=400, test=100),
    'scenes.py': "_base_ = 'mmcalib::mbls/digit_scenes.py'\n"
    "measured = dict(type='CalibrationMetric', per_class=True, per_distance=True)\n"
    "test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), measured]\n"
    + FEW.format(epochs=8, interval=4, train=200, test=12),
    'digit_files.py': "_base_ = 'digits.py'\n"
    + FILES.format(
        dataset="type='CustomDataset', data_root='images/digits'",
        annotations='',
        pack='PackInputs',
    ),
    'scene_files.py': "_base_ = 'scenes.py'\n"
    + FILES.format(
        dataset="type='BaseSegDataset', data_root='images/scenes', data_prefix=dict("
        "img_path='pixels', seg_map_path='labels'), img_suffix='.png', seg_map_suffix='.png', "
        "metainfo=dict(classes=('background', *'0123456789'))",
        annotations="dict(type='LoadAnnotations'), ",
        pack='PackSegInputs',
    ),
    'ood.py': OOD,
}
FIRST = 'train_digits/epoch_1.pth'
SECOND = 'train_digits/epoch_2.pth'
RESUMED = 'resume_digits/epoch_3.pth'
SCENES = 'train_scenes/epoch_8.pth'
# Tool and arguments of each command; {out} is the folder of the command.
COMMANDS = {
    'train_digits': 'train.py digits.py --work-dir {out}',
    'train_scenes': 'train.py scenes.py --work-dir {out}',
    'resume_digits': f'train.py digits.py --work-dir {{out}} --resume {SECOND} '
    '--cfg-options train_cfg.max_epochs=3',
    'test_plain': f'test.py digits.py {SECOND} --work-dir {{out}}',
    'test_calibration': f'test.py scenes.py {SCENES} --calibration --work-dir {{out}}',
    'test_objects': f'test.py scene_files.py {SCENES} --objects --work-dir {{out}}',
    'test_tta': f'test.py scenes.py {SCENES} --tta --work-dir {{out}}',
    'test_members': f'test.py digits.py {FIRST} {SECOND} {RESUMED} --calibration '
    '--disagreement {out}/disagreement --work-dir {out}',
    'test_ood': f'test.py ood.py {SECOND} --work-dir {{out}}',
    'calibrate_temperature': f'calibrate.py digits.py {SECOND} --test --work-dir {{out}} '
    '--out {out}/calibrated.pth',
    'calibrate_auto': f'calibrate.py scenes.py {SCENES} --method auto --samples 20000 --test '
    '--work-dir {out} --out {out}/calibrated.pth',
    'calibrate_attached': f'calibrate.py digits.py {SECOND} --method ets --test --work-dir {{out}} '
    '--out {out}/calibrated.pth',
    'calibrate_mean': f'calibrate.py digits.py {FIRST} {SECOND} {RESUMED} --work-dir {{out}} '
    '--out {out}/temperature.json',
    'predict_scenes': f'predict.py scene_files.py {SCENES} images/scenes/pixels --out {{out}} '
    '--validation test_objects --risk 0.7',
    'predict_mean': f'predict.py digit_files.py {FIRST} {SECOND} {RESUMED} images/digits '
    '--disagreement --out {out}',
    'robustness': f'test_robustness.py digits.py {SECOND} {RESUMED} --corruptions gaussian_noise '
    'brightness --severities 2 4 --work-dir {out}',
    'sweep': 'sweep.py digits.py --param margin=4,8 --work-dir {out} --cfg-options '
    'train_cfg.max_epochs=1 train_dataloader.dataset.indices=200',
    'report_text': 'report.py . --out {out}/report.txt',
    'report_json': 'report.py . --out {out}/report.json',
    'report_page': 'report.py test_members train_digits train_scenes sweep --out {out}/report.md '
    '--html {out}/report.html --figures {out}/figures --figure-format png',
    'visualize': 'visualize.py reliability train_digits test_members --out {out}/diagram.png '
    '--dpi 50',
    'export': f'export.py digits.py {SECOND} --out {{out}}/model.onnx --size 8 8',
}

IGNORED_KEYS = ('date', 'version', 'modified', 'seconds')  # times of files and of fits too
# mmcalib writes or reads these keys of a checkpoint's meta.
META = ('facts', 'calibration', 'dataset_meta', 'epoch', 'iter', 'seed')
TEXTS = ('.md', '.txt', '.tex')
COMPARED = ('.json', '.csv', '.npz', '.pth', '.png', '.onnx', *TEXTS)
LOG_FOLDER = re.compile(r'\d{8}_\d{6}')  # mmengine names the folder of a log after the time
MODEL_DIGEST = re.compile(r'-[0-9a-f]{8}\b')  # at the end of the name of a model folder
# A file names paths below the folder of all commands absolutely or relative to it.
ABSOLUTE_FOLDER = re.compile(rf'/[^\s\'"]*/(?=(?:images|{"|".join(COMMANDS)})/)')


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest='action', required=True)
    run_parser = actions.add_parser('run', help='run the commands of a checkout into a folder')
    run_parser.add_argument('checkout', type=Path)
    run_parser.add_argument('folder', type=Path)
    compare_parser = actions.add_parser('compare', help='print the differences of two folders')
    compare_parser.add_argument('before', type=Path)
    compare_parser.add_argument('after', type=Path)
    compare_parser.add_argument(
        '--ignore',
        nargs='+',
        default=[],
        metavar='KEY',
        help='keys, columns or arrays that are expected to differ, such as told_by or '
        'evaluation.shift.digest: all whose dotted path ends in KEY',
    )
    compare_parser.add_argument(
        '--tolerance', type=float, default=1e-6, help='of numbers, relative above 1 (%(default)s)'
    )
    compare_parser.add_argument(
        '--lines', type=int, default=8, metavar='N', help='differences shown of a command'
    )
    for sub_parser in (run_parser, compare_parser):
        sub_parser.add_argument(
            '--only',
            nargs='+',
            choices=COMMANDS,
            default=list(COMMANDS),
            metavar='COMMAND',
            help=f'only these of {", ".join(COMMANDS)}',
        )
    args = parser.parse_args()
    if args.action == 'run':
        return run_commands(args.checkout.resolve(), args.folder.resolve(), args.only)
    comparison = Comparison(tuple(args.ignore), args.tolerance)
    return compare_folders(args.before, args.after, args.only, comparison, args.lines)


# -- run ------------------------------------------------------------------------------------------


def run_commands(checkout: Path, folder: Path, names: Iterable[str]) -> int:
    """Run commands of a checkout, each into a folder of its own, and keep their exit statuses."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in CONFIGS.items():
        (folder / name).write_text(text)
    if not (folder / 'images').exists():
        write_images(folder / 'images')
    environment = {**os.environ, 'PYTHONPATH': str(checkout), 'OMP_NUM_THREADS': '1'}
    failures = 0
    for name in COMMANDS:
        if name not in names:
            continue
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        tool, *arguments = COMMANDS[name].format(out=name).split()
        start = time.monotonic()
        with (folder / f'{name}.log').open('w') as log:
            status = subprocess.run(
                [sys.executable, str(checkout / 'tools' / tool), *arguments],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        (out / 'status.txt').write_text(f'{status}\n')
        print(f'{name:24} status {status}  {time.monotonic() - start:5.1f} s', flush=True)
        if status:
            failures += 1
    return 1 if failures else 0


def write_images(folder: Path) -> None:
    """Write digits, scenes of digits with their labels, and pieces of photographs as files."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    random = np.random.default_rng(0)
    digits = load_digits()

    def save(array: np.ndarray, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array.astype(np.uint8)).save(path)

    for index in range(8):
        pixels = digits.images[index] / 16 * 255
        save(pixels, folder / f'digits/class {digits.target[index]}/{index}.png')
    for index in range(12):
        pixels = np.zeros((40, 40))
        labels = np.zeros((40, 40))
        for cell, digit in enumerate(random.choice(len(digits.images), 16, replace=False)):
            top = 10 * (cell // 4)
            left = 10 * (cell % 4)
            window = np.s_[top : top + 8, left : left + 8]
            pixels[window] = digits.images[digit] / 16 * 255
            labels[window] = np.where(digits.images[digit] > 8, digits.target[digit] + 1, 0)
        pixels += 60 * random.standard_normal(pixels.shape)
        save(pixels.clip(0, 255), folder / f'scenes/pixels/{index}.png')
        save(labels, folder / f'scenes/labels/{index}.png')
    for index in range(40):
        photograph = load_sample_images().images[index % 2]
        top = random.integers(0, 400)
        left = random.integers(0, 600)
        piece = photograph[top : top + 16, left : left + 16]
        save(piece, folder / f'photographs/pieces/{index}.png')


# -- compare --------------------------------------------------------------------------------------


def compare_folders(
    before: Path, after: Path, names: Iterable[str], comparison: Comparison, num_lines: int
) -> int:
    """Print the differences of each command; return 1 if there are any."""
    print('| command | files | values | largest difference | differ |')
    print('|---|--:|--:|--:|--:|')
    lines = []
    for name in names:
        comparison.num_values = 0
        comparison.largest = 0.0
        files_before = compared_files(before / name)
        files_after = compared_files(after / name)
        differences = []
        for path in sorted(files_before.keys() ^ files_after.keys()):
            where = 'before' if path in files_before else 'after'
            differences.append(f'{path}: only {where}')
        both = sorted(files_before.keys() & files_after.keys())
        for path in both:
            contents = read_content(files_before[path]), read_content(files_after[path])
            differences += [f'{path}: {text}' for text in comparison.differences(*contents)]
        if not both:
            differences.append('there are no files to compare: run this command first')
        print(
            f'| {name} | {len(both)} | {comparison.num_values} | {comparison.largest:.1e} | '
            f'{len(differences)} |'
        )
        lines += [f'{name}/{text}' for text in differences[:num_lines]]
        if len(differences) > num_lines:
            lines.append(f'{name}: {len(differences) - num_lines} more')
    print('\n'.join(lines))
    return 1 if lines else 0


def compared_files(folder: Path) -> dict[str, Path]:
    """Return the files to compare, by their paths without the digests of models."""
    files = {}
    for path in sorted(folder.rglob('*')):
        name = path.relative_to(folder).as_posix()
        if path.suffix in COMPARED and path.is_file() and not LOG_FOLDER.search(name):
            files[MODEL_DIGEST.sub('-*', name)] = path
    return files


def read_content(path: Path) -> object:
    """Return a file as JSON values and arrays."""
    if path.suffix == '.json':
        return json.loads(path.read_text(encoding='utf-8'))
    if path.suffix == '.csv':
        with path.open(newline='', encoding='utf-8') as file:
            return [
                {column: as_number(cell) for column, cell in row.items()}
                for row in csv.DictReader(file)
            ]
    if path.suffix == '.npz':
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == '.png':
        from PIL import Image

        return {'pixels': np.asarray(Image.open(path)).astype(np.int64)}
    if path.suffix == '.pth':
        return read_checkpoint(path)
    if path.suffix == '.onnx':
        return run_onnx(path)
    return path.read_text(encoding='utf-8').splitlines()


def as_number(cell: object) -> object:
    """Return a cell of a table as a number, if it is one."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell


def read_checkpoint(path: Path) -> dict:
    """Return the weights of a checkpoint as arrays, and the facts that mmcalib keeps in it."""
    import torch

    # mmengine pickles its message hub. This script has written the file itself.
    checkpoint = torch.load(path, map_location='cpu', weights_only=False)
    meta = checkpoint.get('meta', {})
    weights = {name: tensor.numpy() for name, tensor in checkpoint['state_dict'].items()}
    return {'state_dict': weights, 'meta': {key: meta.get(key) for key in META}}


def run_onnx(path: Path) -> dict:
    """Return what an ONNX file predicts of fixed pixels, and the model's properties."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    (pixels,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 8 for size in pixels.shape]
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    outputs = session.run(None, {pixels.name: array})
    properties = session.get_modelmeta().custom_metadata_map
    return {
        'shape': [str(size) for size in pixels.shape],
        'outputs': outputs,
        'properties': {key: parsed_json(text) for key, text in properties.items()},
    }


def parsed_json(text: str) -> object:
    """Return the value of a text that is JSON, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass
class Comparison:
    """A walk through two trees of values, which counts what it compares.

    Attributes:
        ignored: Ends of the dotted paths that may differ.
        tolerance: Largest difference of two numbers, relative to numbers above 1.
        num_values: Number of values compared.
        largest: Largest difference of two numbers.
    """

    ignored: tuple[str, ...]
    tolerance: float
    num_values: int = 0
    largest: float = 0.0

    def differences(self, before: object, after: object, path: str = '') -> Iterator[str]:
        """Yield a line for each value that differs."""
        if self.is_ignored(path):
            return
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for key in dict.fromkeys([*before, *after]):
                key_path = f'{path}.{key}'.lstrip('.')
                if key in before and key in after:
                    yield from self.differences(before[key], after[key], key_path)
                elif not self.is_ignored(key_path):
                    yield f'{key_path}: only {"before" if key in before else "after"}'
        elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
            if len(before) != len(after):
                yield f'{path}: {len(before)} and {len(after)} items'
            for index, (first, second) in enumerate(zip(before, after, strict=False)):
                yield from self.differences(first, second, f'{path}.{index}'.lstrip('.'))
        elif isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
            yield from self.array_differences(before, after, path)
        elif is_number(before) and is_number(after):
            self.num_values += 1
            difference = number_difference(float(before), float(after))
            self.largest = max(self.largest, difference)
            if difference > self.tolerance:
                yield f'{path}: {before!r} and {after!r}'
        else:
            self.num_values += 1
            if without_folders(before) != without_folders(after):
                yield f'{path}: {before!r:.200} and {after!r:.200}'

    def array_differences(self, before: np.ndarray, after: np.ndarray, path: str) -> Iterator[str]:
        """Yield a line if two arrays differ."""
        self.num_values += before.size
        if before.shape != after.shape or before.dtype != after.dtype:
            shapes = f'{before.dtype} {before.shape} and {after.dtype} {after.shape}'
            yield f'{path}: {shapes}'
        elif before.dtype.kind not in 'fiub':
            if not np.array_equal(before, after):
                yield f'{path}: other {before.dtype} values'
        elif before.size:
            first = before.astype(float)
            second = after.astype(float)
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            with np.errstate(invalid='ignore'):
                apart = np.abs(first - second) / np.maximum(1.0, np.abs(first))
            apart = np.where(same, 0.0, np.nan_to_num(apart, nan=math.inf))
            self.largest = max(self.largest, apart.max())
            count = int((apart > self.tolerance).sum())
            if count:
                yield f'{path}: {count} of {before.size} values, by at most {apart.max():.1e}'

    def is_ignored(self, path: str) -> bool:
        """Return whether a value may differ."""
        names = [*IGNORED_KEYS, *self.ignored]
        return any(path == name or path.endswith(f'.{name}') for name in names)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_difference(before: float, after: float) -> float:
    """Return how far two numbers are apart; two NaN are equal."""
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    difference = abs(before - after) / max(1.0, abs(before))
    return math.inf if math.isnan(difference) else difference


def without_folders(value: object) -> object:
    """Return a text without absolute folders and digests of models; other values as they are."""
    if not isinstance(value, str):
        return value
    return MODEL_DIGEST.sub('-*', ABSOLUTE_FOLDER.sub('', value))


if __name__ == '__main__':
    sys.exit(main())
