"""Compare the figures of two versions of mmcalib on the same checkpoints.

Each version is a checkout. The first trains the checkpoints, or they are given; then both test,
calibrate and predict with them. The table names each command and its largest difference.

Example: git worktree add ../before 6aeb3bd && compare_versions.py ../before . --work-dir /tmp/both
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

KEPT = (
    'ECE AECE ClasswiseECE smECE debiasedECE ACE MCE RMSCE OE NLL refinement_NLL calibration_NLL '
    'temperature Brier reliability resolution uncertainty AURC AUGRC AUROC FPR95 accuracy '
    'confidence risk@coverage_0.8 coverage@risk_0.1'
)
METHODS = 'temperature vector matrix ets isotonic class-temperatures class-conditional'
CONFIG = """
_base_ = {config!r}
test_evaluator = [dict(type={task!r}), dict(
    type='CalibrationMetric', metrics={metrics!r}, confidence_interval=0.95, per_class=True)]
val_evaluator = test_evaluator
"""
# Figures that may differ by more than rounding, as a share of the older figure or of 1.
LOOSE = {'refinement_NLL': 1e-3, 'calibration_NLL': 1e-3, 'AECE': 1e-3, 'temperature': 1e-3}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('before', type=Path)
    parser.add_argument('after', type=Path)
    parser.add_argument('--work-dir', type=Path, required=True)
    parser.add_argument(
        '--config', nargs='+', default=['ce/digits.py', 'ce/digit_scenes.py'], help='below configs/'
    )
    parser.add_argument('--checkpoint', nargs='*', help='of each config, instead of a training')
    parser.add_argument('--methods', nargs='*', default=METHODS.split())
    args = parser.parse_args()
    versions = [args.before.resolve(), args.after.resolve()]
    print('| config | command | figures | largest difference | of | differ |')
    print('|---|---|--:|--:|---|--:|')
    for place, name in enumerate(args.config):
        folder = (args.work_dir / name.replace('/', '_').removesuffix('.py')).resolve()
        checkpoint = (
            args.checkpoint[place] if args.checkpoint else trained(versions[0], name, folder)
        )
        for command in commands(args.methods):
            first, second = (
                figures(root, name, Path(checkpoint).resolve(), command, folder / which)
                for root, which in zip(versions, ('before', 'after'), strict=True)
            )
            print(f'| {name} | {" ".join(command)} | {row_of(first, second)} |', flush=True)


def commands(methods: list[str]) -> list[list[str]]:
    tests = ['test.py', 'dist_test.sh 2', 'test.py --tta', 'test.py --split val']
    calibrations = [f'calibrate.py --method {method}' for method in methods]
    return [command.split() for command in tests + calibrations]


def run(root: Path, command: list, folder: Path) -> None:
    """Run a tool of a version in its checkout; its output goes to a file in the folder."""
    tool, *arguments = command
    program = sys.executable if tool.endswith('.py') else 'bash'
    line = [str(word) for word in (program, root / 'tools' / tool, *arguments)]
    env = {**os.environ, 'PYTHONPATH': str(root), 'OMP_NUM_THREADS': '1'}
    with (folder / 'log').open('a') as out:
        subprocess.run(line, cwd=root, env=env, stdout=out, stderr=out, check=True)


def trained(root: Path, name: str, folder: Path) -> Path:
    """Train a config once; return its last checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob('trained/epoch_*.pth')):
        config = root / 'configs' / name
        run(root, ['train.py', config, '--work-dir', folder / 'trained'], folder)
    checkpoints = folder.glob('trained/epoch_*.pth')
    return max(checkpoints, key=lambda path: int(path.stem.removeprefix('epoch_')))


def figures(root: Path, name: str, checkpoint: Path, command: list[str], folder: Path) -> dict:
    """Run a command with one version; return its figures, or why there are none."""
    folder /= '_'.join(command).replace('--', '')
    folder.mkdir(parents=True, exist_ok=True)
    task = 'IoUMetric' if any(word in name for word in ('scenes', 'voc', 'people')) else 'Accuracy'
    config = folder / 'config.py'
    base = str(root / 'configs' / name)
    config.write_text(CONFIG.format(config=base, task=task, metrics=KEPT.split()))
    tool, *options = command
    try:
        if tool == 'calibrate.py':
            out = folder / 'calibrated.pth'
            run(root, [tool, config, checkpoint, *options, '--out', out, '--overwrite'], folder)
            attached = out.with_suffix('.py')  # of a scaling that no layer absorbs
            tool, config, checkpoint = 'test.py', attached if attached.exists() else config, out
            options = []
        run(root, [tool, config, checkpoint, *options, '--work-dir', folder], folder)
    except subprocess.CalledProcessError as error:
        return {'failed': error.returncode}
    found = {}
    for path in sorted(folder.rglob('results*.json')):
        values = json.loads(path.read_text())['metrics']
        found |= {f'{path.name}:{key}': v for key, v in values.items() if isinstance(v, float)}
    return found


def row_of(first: dict, second: dict) -> str:
    """Return the cells of one command: how far the figures of two versions are apart."""
    both = first.keys() & second.keys()
    apart = {key: difference(first[key], second[key]) for key in both}
    most = max(apart, key=apart.get, default='nothing')
    loose = {key: max((v for k, v in LOOSE.items() if k in key), default=1e-6) for key in both}
    differ = sorted(key for key in both if apart[key] > loose[key])
    alone = len(first.keys() ^ second.keys())
    detail = ', '.join(key.split('/')[-1] for key in differ[:4])
    return f'{len(both)} (+{alone}) | {apart.get(most, 0):.1e} | {most} | {len(differ)} {detail}'


def difference(a: float, b: float) -> float:
    """Return |a − b|; two NaNs are equal, and one is infinitely far from any number."""
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return abs(a - b)


if __name__ == '__main__':
    main()
