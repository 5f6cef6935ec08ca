"""Compare the metrics of two versions of mmcalib on the same checkpoints.

Each version is a checkout. The first trains the checkpoints unless they are given; then both test
and calibrate them. The table has the largest difference for each command.

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

METRICS = (
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
# Tolerances of metrics that may differ by more than rounding.
TOLERANCES = {'refinement_NLL': 1e-3, 'calibration_NLL': 1e-3, 'AECE': 1e-3, 'temperature': 1e-3}


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
    before = args.before.resolve()
    after = args.after.resolve()
    print('| config | command | figures | largest difference | of | differ |')
    print('|---|---|--:|--:|---|--:|')
    for index, name in enumerate(args.config):
        folder = (args.work_dir / name.replace('/', '_').removesuffix('.py')).resolve()
        if args.checkpoint:
            checkpoint = Path(args.checkpoint[index]).resolve()
        else:
            checkpoint = train(before, name, folder).resolve()
        for command in commands(args.methods):
            old = run_and_read(before, name, checkpoint, command, folder / 'before')
            new = run_and_read(after, name, checkpoint, command, folder / 'after')
            print(f'| {name} | {" ".join(command)} | {difference_cells(old, new)} |', flush=True)


def commands(methods: list[str]) -> list[list[str]]:
    """Return tools with their options."""
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


def train(root: Path, name: str, folder: Path) -> Path:
    """Train a config once; return its last checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob('trained/epoch_*.pth')):
        config = root / 'configs' / name
        run(root, ['train.py', config, '--work-dir', folder / 'trained'], folder)
    checkpoints = folder.glob('trained/epoch_*.pth')
    return max(checkpoints, key=lambda path: int(path.stem.removeprefix('epoch_')))


def run_and_read(root: Path, name: str, checkpoint: Path, command: list[str], folder: Path) -> dict:
    """Run a command with one version; return its metrics, or its exit status."""
    folder /= '_'.join(command).replace('--', '')
    folder.mkdir(parents=True, exist_ok=True)
    task = 'IoUMetric' if any(word in name for word in ('scenes', 'voc', 'people')) else 'Accuracy'
    config = folder / 'config.py'
    base = str(root / 'configs' / name)
    config.write_text(CONFIG.format(config=base, task=task, metrics=METRICS.split()))
    tool, *options = command
    try:
        if tool == 'calibrate.py':
            out = folder / 'calibrated.pth'
            run(root, [tool, config, checkpoint, *options, '--out', out, '--overwrite'], folder)
            # A scaling that no layer absorbs comes with a config.
            if out.with_suffix('.py').exists():
                config = out.with_suffix('.py')
            checkpoint = out
            tool = 'test.py'
            options = []
        run(root, [tool, config, checkpoint, *options, '--work-dir', folder], folder)
    except subprocess.CalledProcessError as error:
        return {'failed': error.returncode}
    metrics = {}
    for path in sorted(folder.rglob('results*.json')):
        for key, value in json.loads(path.read_text())['metrics'].items():
            if isinstance(value, float):
                metrics[f'{path.name}:{key}'] = value
    return metrics


def difference_cells(old: dict, new: dict) -> str:
    """Return the cells of one command: how far the metrics of two versions are apart."""
    differences = {key: difference(old[key], new[key]) for key in old.keys() & new.keys()}
    largest = max(differences, key=differences.get, default='nothing')
    differing = sorted(key for key, value in differences.items() if value > tolerance(key))
    num_unpaired = len(old.keys() ^ new.keys())
    names = ', '.join(key.split('/')[-1] for key in differing[:4])
    return (
        f'{len(differences)} (+{num_unpaired}) | {differences.get(largest, 0):.1e} | {largest} | '
        f'{len(differing)} {names}'
    )


def tolerance(key: str) -> float:
    return max((value for name, value in TOLERANCES.items() if name in key), default=1e-6)


def difference(a: float, b: float) -> float:
    """Return |a − b|; two NaNs are equal, and one is infinitely far from any number."""
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return abs(a - b)


if __name__ == '__main__':
    main()
