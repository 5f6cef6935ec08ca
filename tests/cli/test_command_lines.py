"""Help, the console command, and every command line that is refused in one line."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from commands import ROOT

from mmcalib import __main__, __version__, choices
from mmcalib.cli.options import REQUIRED, Options, option, positional
from mmcalib.cli.parser import ToolParser
from mmcalib.cli.shared import parse_options
from mmcalib.members import find_checkpoint
from mmcalib.metrics import protocols
from mmcalib.posthoc import SCALERS, affine
from mmcalib.reports.figures import from_files as figures
from mmcalib.runs.config import load_config

TOOLS = sorted(path.name for path in (ROOT / 'tools').glob('*.py') if path.stem != 'torchrun')
HELP = """
import runpy, sys
sys.argv = [{0!r}, '--help']
try:
    runpy.run_path({0!r}, run_name='__main__')
finally:
    print('imported:', *{{'torch', 'mmengine', 'mmcv', 'matplotlib'}} & sys.modules.keys())
"""
IN_THE_HELP = {'calibrate.py': '(default: 200000)', 'test.py': 'have paper, regions, mmseg, unseen'}
CE, MBLS = (f'{ROOT}/configs/{loss}/digits.py' for loss in ('ce', 'mbls'))
VOC, CIFAR10 = (
    f'{ROOT}/configs/ce/{name}.py' for name in ('deeplabv3_r50_voc', 'resnet50_cifar10')
)
TYPE = f'{CE} --work-dir w --cfg-options model'
UNTRAINED = f'test.py {CE} a.pth --work-dir w'
# A command line, and what its error names.
REFUSED = {
    f'train.py {CE} --wrok-dir w': '--wrok-dir w; did you mean --work-dir?',
    f'train.py {CE} --zzz': 'unrecognized arguments: --zzz',
    f'calibrate.py {CE} a.pth --out b --method temprature': 'did you mean temperature?',
    'visualize.py reliabilty w --out a.png': 'did you mean reliability?',
    'train.py nowhere.txt': "there is no config 'nowhere.txt' in ",
    'train.py configs/mbls/digits.py': 'name it mmcalib::mbls/digits.py',
    'train.py mien.py': "there is no config 'mien.py' in ",
    'train.py mmcalib::mbls/digit.py': "there is no config 'mmcalib::mbls/digit.py'",
    'train.py nowhere::a.py': "there is no package 'nowhere'. For the toolboxes: pip inst",
    'train.py bad.py': 'bad.py cannot be read: ValueError: by the config',
    'train.py base.py': "no/such.py' in ",
    f'train.py {VOC} --work-dir w': 'VOCtrainval_11-May-2012.tar',
    f'train.py {CIFAR10} --work-dir w': 'cifar-10-python.tar.gz',
    f'train.py {TYPE}.head.loss.type=SoftmaxFocalLos': 'SoftmaxFocalLos is not in the ',
    f'train.py {TYPE}.backbone.type=ResNet_CIFARR': 'ResNet_CIFARR is not in the ',
    f'train.py {CE} --amp': '--amp needs a CUDA device',
    f'train.py {CE} --limit 0': '--limit must be',
    f'train.py {CE} --launcher slurm --work-dir w': '--launcher slurm needs GPUs',
    f'train.py {CE} --resume none.pth': "there is no checkpoint 'none.pth'",
    f'test.py {CE}': 'name a checkpoint',
    f'test.py {CE} none.pth': "there is no checkpoint 'none.pth'",
    f'test.py {CE} a.pht': "there is no checkpoint 'a.pht'",
    f'test.py {CE} several/x.pth': "there is no checkpoint 'several/x.pth'",
    f'test.py {CE} empty': "the folder 'empty' has no checkpoint: name one",
    f'test.py {CE} one': 'has no best checkpoint: name one of one/epoch_1.pth',
    f'test.py {CE} several': 'several best checkpoints: name one of several/best_ECE.pth, several/',
    f'test.py {CE} a.pth ./a.pth': 'a.pth is named twice and would count twice',
    f'test.py text.pth {CE}': "'text.pth' is no config",
    f'test.py {CE} text.pth': 'is no readable checkpoint: it is another kind of file',
    f'test.py {CE} a.pth --limit -1': '--limit must be',
    f'test.py {CE} a.pth --mc-dropout -1': '--mc-dropout must be',
    f'test.py {CE} a.pth --evaluation unsen': 'no such evaluation; did you mean unseen?',
    f'test.py {CE} a.pth --out folder.pkl': 'folder.pkl is a folder: name a file',
    f'test.py {CE} a.pth --out a.pth/below.pkl': 'below.pkl cannot be written',
    f'test.py {CE} a.pth --out metrics.txt': 'predictions go to a .pkl file',
    f'test.py {CE} a.pth --show-dir drawn': 'needs default_hooks.visualization',
    f'{UNTRAINED} --objects --cfg-options test_evaluator=[]': 'add --calibration',
    f'{UNTRAINED} --tta': 'does not fit the model of this config: it lacks',
    f'{UNTRAINED} --cfg-options test_dataloader.dataset.indices=[]': (
        'error: the test data, metrics or test_cfg: there are no samples'
    ),
    f'train.py {CE} --cfg-options model.head': 'argument --cfg-options: takes KEY=VALUE',
    f'train.py {CE} --cfg-options =3': 'takes KEY=VALUE',
    f'train.py {CE} --cfg-options "a=[b c]"': "'a=[b c]' has a space, which would be lost: write a",
    f"train.py {CE} --cfg-options 'a=[1,(2]'": 'Imbalanced brackets',
    f'train.py {CE} --cfg-options "a=[dict(b=1)]"': 'takes no dict',
    f'train.py {CE} --cfg-options a={{}}': 'takes no dict',
    f'calibrate.py {CE} a.pth --out c.pth --samples 0': '--samples must be',
    f'predict.py {CE} none.pth {ROOT} --out o': 'reads no image files',
    f'predict.py {CE} a.pth a.png --out p --prob 2': 'probability must be',
    f'export.py {CE} a.pth --out m.onnx --toler -1': '--tolerance must be',
    f'test_robustness.py {CE} a.pth --work-dir w --severities -1': '--severities must be',
    f'test_robustness.py {CE} a.pth --work-dir w --corruptions gausian_noise': 'n gaussian_noise?',
    f'sweep.py {MBLS} --param margn=1': 'did you mean margin?',
    f'sweep.py {CE} --param zzz=1': 'use_soft',
    f'sweep.py {MBLS} --param margin=8 --jobs 0': '--jobs must be',
    'sweep.py --plot . --out a.png': 'sweep.json cannot be read',
    'report.py nowhere': 'nowhere',
    'visualize.py reliability nowhere --out a.png': 'nowhere',
    'visualize.py reliability w --out a.png --dpi 0': '--dpi must be',
}  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with what is named above."""
    folder = tmp_path_factory.mktemp('refused')
    for name in ('empty', 'one', 'several', 'folder.pkl'):
        (folder / name).mkdir()
    for name in ('mine.py', 'one/epoch_1.pth', 'several/best_ECE.pth', 'several/best_top1.pth'):
        (folder / name).touch()
    (folder / 'sweep.json').write_text('{')
    (folder / 'bad.py').write_text("raise ValueError('by the config')")
    (folder / 'base.py').write_text("_base_ = 'no/such.py'")
    (folder / 'text.pth').write_text('no checkpoint')
    torch.save({'state_dict': {}}, folder / 'a.pth')
    return folder


@pytest.mark.parametrize('line', REFUSED, ids=lambda line: line.replace(f'{ROOT}/', ''))
def test_command_line_refused_in_one_line(line, folder, run, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    last = run(*shlex.split(line), code=2).splitlines()[-1]
    assert last.startswith(f'{line.split()[0]}: error: ')
    assert REFUSED[line] in last
    assert not ('zzz' in line and 'did you mean' in last)
    assert not (folder / 'work_dirs').exists() and not list(folder.rglob('results*.json'))


def test_find_checkpoint_work_dir_is_best_checkpoint(tmp_path):
    for name in ('epoch_1.pth', 'best_top1_epoch_1.pth'):
        (tmp_path / name).touch()
    assert find_checkpoint(str(tmp_path)) == str(tmp_path / 'best_top1_epoch_1.pth')


@pytest.mark.parametrize('error', [TypeError, ValueError])
def test_parser_unexpected_error_keeps_traceback(error):
    with pytest.raises(error, match='of ours'), ToolParser().ending_with_errors():
        raise error('of ours')


def test_parser_wrapped_interruption_is_one_line(capsys):
    """As mmengine's config does, in whose formatting a training spends much of its saving."""
    with pytest.raises(SystemExit, match='Stopped: go on'):  # noqa: SIM117
        with ToolParser(stopped='Stopped: go on.').ending_with_errors():
            try:
                raise KeyboardInterrupt
            except BaseException:
                raise SyntaxError('Failed to format the config file')  # noqa: B904
    with pytest.raises(SyntaxError), ToolParser().ending_with_errors():
        raise SyntaxError('of ours')


@pytest.mark.parametrize('tool', TOOLS)
def test_help_has_example_and_imports_nothing_heavy(tool, tmp_path):
    result = subprocess.run(
        [sys.executable, '-c', HELP.format(str(ROOT / 'tools' / tool))], capture_output=True,
        text=True, check=True, cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(ROOT), 'COLUMNS': '300'},
    )  # fmt: skip
    text, _, imported = result.stdout.partition('imported:')
    assert not imported.strip()
    assert re.search(rf'\nexamples?:\n  python tools/{tool} \S', text)
    assert IN_THE_HELP.get(tool, '') in text


@dataclass(frozen=True, kw_only=True)
class SomeOptions(Options):
    last_one: int | None = option('stands last', last=True, group='end: All is said.')
    folder: str = positional('a folder')
    name: str = option('a name', REQUIRED, metavar='NAME')
    size: Sequence[float] = option('sizes', (1.0, 2.0), before='name')
    pictures: bool = option('write none', True)
    quiet: bool = option('say nothing', False, group='words')


def test_options_fields_make_the_parser():
    parser = SomeOptions.build_parser()
    shown = re.findall(r'--[a-z-]+', parser.format_help().partition('show this help')[2])
    assert shown == ['--size', '--name', '--no-pictures', '--quiet', '--last-one']
    assert 'end:\n  All is said.\n' in parser.format_help()
    least = SomeOptions.parse(parser, ['--name', 'a', 'here'])
    assert least == SomeOptions(folder='here', name='a')
    line = 'here --name a --size 3 --no-pictures --quiet --last-one 4'
    assert SomeOptions.parse(parser, line.split()) == SomeOptions(
        folder='here', name='a', size=[3.0], pictures=False, quiet=True, last_one=4
    )


def test_options_required_missing_refused(capsys):
    with pytest.raises(SystemExit):
        SomeOptions.parse(SomeOptions.build_parser(), ['here'])
    assert 'the following arguments are required: --name' in capsys.readouterr().err


def test_choices_equal_those_of_package():
    assert tuple(SCALERS) == choices.METHODS
    assert choices.CRITERIA == affine.CRITERIA
    assert tuple(sorted(protocols.PROTOCOLS)) == choices.PROTOCOLS
    assert (*figures.SHIFT_FIGURES,) == choices.ROBUSTNESS_FIGURES
    data = (ROOT / 'configs/_base_/datasets').glob('*.py')
    assert {*choices.EVALUATIONS} == {
        name for path in data for name in load_config(path).get('evaluations', ())
    }


def test_console_command_lists_and_runs_tools(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['mmcalib', *arguments])
        with pytest.raises(SystemExit) as end:
            __main__.main()
            sys.exit()
        output = capsys.readouterr()
        return output.err if end.value.code else output.out

    listed = run('--help')
    for line in (
        'train                     Train a model, then test its best checkpoint.',
        'robustness                Test checkpoints on corrupted images',
        'calibrate                 Calibrate a trained model',
    ):
        assert f'\n  {line}' in listed
    assert len(re.findall(r'^  \w', listed, re.M)) == len(TOOLS)
    assert '\n  mmcalib report work_dirs\n' in run('report', '--help')
    assert run('test_robustness', '--help').startswith('usage: mmcalib robustness')
    assert run('--version') == f'mmcalib {__version__}\n'
    assert 'did you mean train?' in run('trian')
    assert run('report', 'nowhere').startswith('mmcalib report: error: ')


@pytest.mark.parametrize(
    ('words', 'folder', 'tool'),
    [
        (['mmcalib'], ROOT, 'mmcalib {}'),
        (['mmcalib'], ROOT / 'tools', 'mmcalib {}'),  # The files beside it are of no matter.
        (['tools/{}.py'], ROOT, 'tools/{}.py'),
        (['../tools/{}.py'], ROOT / 'docs', '../tools/{}.py'),
        (['{}.py'], ROOT / 'tools', '{}.py'),
        (['my/{}.py'], ROOT, 'mmcalib {}'),  # a script of the user's own
    ],
)
def test_message_names_command_as_the_user_can_run_it(
    words, folder, tool, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(folder)
    (tmp_path / 'last_checkpoint').touch()
    lines = {
        'report': [str(tmp_path)],
        'visualize': ['robustness', str(tmp_path), '--out', str(tmp_path / 'a.png')],
    }
    errors = {}
    for name, arguments in lines.items():
        monkeypatch.setattr(sys, 'argv', [word.format(name) for word in words] + arguments)
        if words == ['mmcalib']:
            sys.argv.insert(1, name)
        with pytest.raises(SystemExit):
            __main__.main(None if words == ['mmcalib'] else name)
        errors[name] = capsys.readouterr().err
    assert f'({tool.format("train")} CONFIG --resume' in errors['report']
    shifted = tool.format('test_robustness' if tool.endswith('.py') else 'robustness')
    assert errors['visualize'].endswith(f'name the work dir of {shifted}\n')


@pytest.mark.parametrize('path', sorted((ROOT / 'tools').glob('*.sh')), ids=lambda path: path.name)
def test_shell_script_without_arguments_prints_usage(path):
    result = subprocess.run(['bash', path], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f'Usage: tools/{path.name}' in result.stderr


def test_shell_script_starts_tool_with_arguments(tmp_path):
    """The tool, the processes, and the arguments in their places; none runs."""
    (tmp_path / 'python').write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    (tmp_path / 'python').chmod(0o755)
    path = f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'
    for machines in ({}, dict(NNODES='2', NODE_RANK='1', MASTER_ADDR='there')):
        started = {}
        for tool in ('train', 'test', 'calibrate'):
            files = ['a config.py', 'a.pth'][: 1 if tool == 'train' else 2]
            arguments = [f'{ROOT}/tools/dist_{tool}.sh', *files, '3', 'b.pth', '--out', 'o']
            environment = os.environ | {'PATH': path, 'PORT': '1234'} | machines
            output = subprocess.check_output(['bash', *arguments], text=True, env=environment)
            words = output.splitlines()
            expected_arguments = [*files, '--launcher', 'pytorch', 'b.pth', '--out', 'o']
            num_arguments = len(expected_arguments)
            *started[tool], script = words[:-num_arguments]
            assert Path(script).name == f'{tool}.py'
            assert words[-num_arguments:] == expected_arguments
        assert started['train'] == started['test'] == started['calibrate']
        assert {'--nproc_per_node=3', '--master_port=1234'} <= {*started['train']}
        assert f'--nnodes={machines.get("NNODES", 1)}' in started['train']


@pytest.mark.parametrize(
    ('environment', 'gpus_on_node', 'tasks'),
    [
        (dict(GPUS='1'), 1, 1),
        (dict(GPUS='4'), 4, 4),
        (dict(GPUS='8'), 8, 8),
        (dict(), 8, 8),
        (dict(GPUS='16'), 8, 16),
        (dict(GPUS='16', GPUS_PER_NODE='4'), 4, 16),
    ],
)
def test_slurm_train_asks_for_nodes_that_exist(environment, gpus_on_node, tasks, tmp_path):
    """No node of 4 GPUs has 8, for which Slurm would wait for ever."""
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    script = [ROOT / 'tools/slurm_train.sh', 'gpu', 'job', 'config.py', 'work', '--no-test']
    path = f'{tmp_path}:{os.environ["PATH"]}'
    arguments = subprocess.check_output(
        ['bash', *script], env=dict(environment, PATH=path), text=True
    ).splitlines()
    assert f'--gres=gpu:{gpus_on_node}' in arguments
    assert f'--ntasks={tasks}' in arguments
    assert f'--ntasks-per-node={gpus_on_node}' in arguments
    assert arguments[-6:] == ['config.py', '--work-dir', 'work', '--launcher', 'slurm', '--no-test']


def test_cfg_options_keep_the_spaces_of_a_text():
    assert parse_options(['a=/my images/b.txt', "b='c d'", 'e=[1, 2]', 'f=( 3 ,4)', 'g= 5']) == {
        'a': '/my images/b.txt', 'b': 'c d', 'e': [1, 2], 'f': (3, 4), 'g': 5
    }  # fmt: skip
