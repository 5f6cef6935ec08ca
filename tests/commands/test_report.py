"""A report destroys no file that is not one."""

import pytest


@pytest.mark.parametrize('option', ['--html', '--out'])
@pytest.mark.parametrize('name', ['results.json', 'results_val.json', 'sweep.json'])
def test_report_onto_record_refused(name, option, run, tmp_path):
    (tmp_path / name).write_text('kept')
    message = run('report.py', '.', option, name, code=2)
    assert 'name another file' in message
    assert (tmp_path / name).read_text() == 'kept'


@pytest.mark.parametrize('name', ['config.py', 'best.pth', 'page'])
def test_report_page_onto_other_file_refused(name, run, tmp_path):
    (tmp_path / name).write_text('kept')
    assert 'ends in .html' in run('report.py', '.', '--html', name, code=2)
    assert (tmp_path / name).read_text() == 'kept'
