"""Run a tool as a user does: in this process, which is fastest, or in a process of its own.

`forked.run_forked` runs it in one or more processes that have the toolboxes already. The fixture
`run` of conftest.py runs it here, in the folder of a test, and returns its output.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_in_process(tool, *arguments, code=0):
    """Run a tool in this process, and check its exit status."""
    status = 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, 'argv', [str(ROOT / 'tools' / tool), *map(str, arguments)])
        monkeypatch.setattr(sys, 'path', list(sys.path))
        try:
            runpy.run_path(str(ROOT / 'tools' / tool), run_name='__main__')
        except SystemExit as end:
            status = end.code or 0
    if isinstance(status, str):  # Python prints a text, and exits with 1.
        print(status, file=sys.stderr)
        status = 1
    assert status == code


def run_in_subprocess(tool, *arguments, cwd, check=True, **environment):
    """Run a tool or a script with this interpreter first on the path, and return its output."""
    # The warnings of a tool are tested, whatever the tests are run with.
    variables = {
        'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
        'OMP_NUM_THREADS': '1',
        'PYTHONWARNINGS': '',
    }
    program = 'bash' if tool.endswith('.sh') else sys.executable
    result = subprocess.run(
        [program, str(ROOT / 'tools' / tool), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stderr + result.stdout
