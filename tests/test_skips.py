"""Continuous integration fails where a test is skipped that the environment should run."""

from pathlib import Path

import pytest

pytest_plugins = ['pytester']
CONFTEST = (Path(__file__).parent / 'conftest.py').read_text(encoding='utf-8')
SKIP = 'import pytest\n@pytest.mark.skipif(True, reason={!r})\ndef test_it(): pass\n'
XFAIL = 'import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n'
MISSING = "import pytest\npytest.importorskip('no_such_package')\n"


@pytest.mark.parametrize(
    ('source', 'ci', 'status'),
    [
        (SKIP.format('needs a GPU'), '1', pytest.ExitCode.OK),
        (SKIP.format('needs PyTorch 2.9'), '1', pytest.ExitCode.OK),
        (SKIP.format('no netcal'), '1', pytest.ExitCode.TESTS_FAILED),
        (SKIP.format('no netcal'), '', pytest.ExitCode.OK),
        (MISSING, '1', pytest.ExitCode.TESTS_FAILED),
        (XFAIL, '1', pytest.ExitCode.OK),
    ],
)
def test_a_skip_in_ci(source, ci, status, pytester, monkeypatch):
    monkeypatch.setenv('CI', ci)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=source, test_other='def test_it(): pass')
    result = pytester.runpytest_inprocess('-q')
    assert result.ret == status
    assert ('should run them' in result.stdout.str()) == (status != 0)
