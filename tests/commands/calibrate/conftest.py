import pytest
from overconfident_checkpoints import DIGITS, FEW, SCENES, load, write_checkpoint


@pytest.fixture(scope='session')
def digits(tmp_path_factory):
    """Checkpoint of an overconfident classifier, which no test changes."""
    return write_checkpoint(tmp_path_factory.mktemp('digits') / 'ce.pth', DIGITS)


@pytest.fixture(scope='session')
def scenes(tmp_path_factory):
    """Checkpoint of an overconfident segmentor, which no test changes."""
    path = tmp_path_factory.mktemp('scenes') / 'ce.pth'
    return write_checkpoint(path, SCENES, 'decode_head.conv_seg', 8)


@pytest.fixture
def calibrate(run):
    """Function that calibrates on few images, and returns the content of the file and the output.

    With a code that is not 0 it returns the error alone.
    """

    def run_calibrate(config, checkpoint, *arguments, out='out.pth', cfg=(), code=0):
        arguments = [config, checkpoint, '--out', out, '--work-dir', 'work', *arguments]
        cfg_options = [*FEW.get(config, ()), *cfg]
        if cfg_options:
            arguments += ['--cfg-options', *cfg_options]
        output = run('calibrate.py', *arguments, code=code)
        return output if code else (load(out), output)

    return run_calibrate
