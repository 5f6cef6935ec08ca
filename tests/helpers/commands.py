"""Run a tool as a user does."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def call(tool, *arguments, cwd, check=True, **environment):
    """Run a tool with this interpreter's environment first on the path."""
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    program = 'bash' if tool.endswith('.sh') else sys.executable
    command = [program, str(ROOT / 'tools' / tool)]
    result = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {'PATH': path, 'OMP_NUM_THREADS': '1'} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stderr + result.stdout


def call_here(tool, *arguments, monkeypatch):
    """Run a tool in this process, which is faster."""
    monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
    try:
        runpy.run_path(str(ROOT / 'tools' / tool), run_name='__main__')
    except SystemExit as end:
        if end.code:
            raise
