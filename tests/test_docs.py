"""The examples in docstrings run, and the blocks of pages do what their readers will do."""

import argparse
import ast
import doctest
import re
import shlex
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from commands import ROOT
from quoted_numbers import written_pages
from tool_parsers import parser_of

from mmcalib import losses
from mmcalib.runs.config import load_config

FORMULAS = [
    'brier',
    'bsce',
    'confidence_penalty',
    'dual_focal',
    'inverse_focal',
    'label_smoothing',
    'margin_label_smoothing',
    'softmax_focal',
]


@pytest.mark.parametrize('name', FORMULAS)
def test_examples(name):
    function = getattr(losses, name)
    scope = {'torch': torch, name: function}
    (test,) = doctest.DocTestFinder().find(function, globs=scope)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


PAGES = [*written_pages(ROOT), ROOT / 'CONTRIBUTING.md']
FENCE = re.compile(r'^( *)```(\w+)\n(.*?)^\1```', re.MULTILINE | re.DOTALL)
INLINE = re.compile(r'(?<!`)`((?:python )?(?:tools/\w+\.\w+|mmcalib) [^`]+)`(?!`)')
TOOL = re.compile(r'(?:\./)?(tools/(?:\w+/)*\w+\.(?:py|sh))')
# A launcher, the tool that it starts, and how many arguments of its own follow the tool's.
LAUNCHERS = {
    'tools/dist_train.sh': ('tools/train.py', 1),
    'tools/dist_test.sh': ('tools/test.py', 2),
    'tools/dist_calibrate.sh': ('tools/calibrate.py', 2),
}
MORE = '…{'  # of words that are not what the tool gets


def page_ids(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, *languages):
    text = page.read_text(encoding='utf-8')
    return [block[3] for block in FENCE.finditer(text) if block[2] in languages]


def commands(page):
    """The commands of a page, each as a list of words, and whether it is whole."""
    for block in blocks(page, 'bash', 'sh', 'shell', 'console'):
        lines = re.sub(r'\\\n', ' ', block).splitlines()
        for words in (words_of(line.strip().removeprefix('$ ')) for line in lines):
            yield from ((command, True) for command in parts(words))
    for inline in INLINE.findall(page.read_text(encoding='utf-8')):
        yield from ((command, False) for command in parts(words_of(inline)))


def words_of(line):
    reader = shlex.shlex(line, posix=True, punctuation_chars=';|&<>()')
    reader.whitespace_split = True
    return list(reader)


def parts(words):
    """The commands of a line, which ``&&``, ``;`` and the like separate."""
    command = []
    for word in [*words, ';']:
        if not set(word) <= set(';|&<>()'):
            command.append(word)
        elif command:
            yield command
            command = []


def tool_and_arguments(words):
    """The tool of this repository that a command runs, with its arguments; None of another."""
    while words and (re.fullmatch(r'\w+=.*', words[0]) or words[0] in ('python', 'do', 'time')):
        words = words[1:]
    if not words:
        return None
    if words[0] == 'mmcalib' and len(words) > 1:
        return f'tools/{words[1].replace("-", "_")}.py', words[2:]
    tool = TOOL.fullmatch(words[0])
    if not tool:
        return None
    tool, arguments = tool[1], words[1:]
    if tool == 'tools/torchrun.py':
        inner = next((i for i, word in enumerate(arguments) if TOOL.fullmatch(word)), None)
        return None if inner is None else tool_and_arguments(arguments[inner:])
    if tool in LAUNCHERS:
        tool, place = LAUNCHERS[tool]
        arguments = [*arguments[:place], *arguments[place + 1 :]]
    return tool, arguments


def problem(tool, arguments, *, whole):
    """What a tool's parser has against arguments; None if it takes them."""
    if not (ROOT / tool).is_file():  # a text may begin with the name of the package
        return f'there is no {tool}' if whole else None
    if not tool.endswith('.py'):
        return None
    parser = parser_of(tool)
    for word in arguments:
        option = word.split('=')[0]
        if re.fullmatch(r'--[a-z][\w-]*', option) and option not in parser._option_string_actions:
            return f'{tool} has no {option}'
    if not whole or any(word.startswith('$') or set(MORE) & set(word) for word in arguments):
        return None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, 'error', _refuse)
            patch.setattr(type(parser), 'error', _refuse)
            parser.parse_args(arguments)
    except _Refused as error:
        # A name in capitals stands for a number of the reader's.
        return None if re.search(r"invalid \w+ value: '[A-Z_]+'", str(error)) else str(error)
    except SystemExit:  # of --help
        return None
    return None


class _Refused(Exception):
    pass


def _refuse(parser, message):
    raise _Refused(message)


@pytest.mark.parametrize('page', PAGES, ids=page_ids)
def test_commands_of_pages_have_their_arguments(page):
    found = [(command, tool_and_arguments(command), whole) for command, whole in commands(page)]
    wrong = [
        f'{" ".join(command)}: {said}'
        for command, known, whole in found
        if known and (said := problem(*known, whole=whole))
    ]
    assert wrong == []


def test_that_the_test_above_finds_commands_and_mistakes():
    known = [
        tool_and_arguments(command) for page in PAGES for command, whole in commands(page) if whole
    ]
    tools = {tool for tool, _ in filter(None, known)}
    assert {'tools/train.py', 'tools/test.py', 'tools/calibrate.py', 'tools/report.py'} <= tools
    whole = dict(whole=True)
    assert problem('tools/train.py', ['config.py', '--ressume'], **whole)
    assert problem('tools/train.py', [], **whole)
    assert problem('tools/nothing.py', [], **whole)
    words = words_of('A=1 python tools/dist_train.sh c.py 4 --amp && ls # so')
    command, other = parts(words)
    assert tool_and_arguments(command) == ('tools/train.py', ['c.py', '--amp'])
    assert tool_and_arguments(other) is None


@pytest.mark.parametrize('page', PAGES, ids=page_ids)
def test_bash_of_pages_is_bash(page):
    for block in blocks(page, 'bash', 'sh', 'shell'):
        checked = subprocess.run(['bash', '-n'], input=block, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize('page', PAGES, ids=page_ids)
def test_python_of_pages_is_python(page):
    for block in blocks(page, 'python', 'py'):
        examples = doctest.DocTestParser().get_examples(block)
        for source in [example.source for example in examples] or [block]:
            ast.parse(source)


def our_config(name):
    return next(ROOT.glob(f'configs/*/{name}'), None)


def configs():
    """The blocks that are configs on a base, but for a file of the reader's own."""
    for page in PAGES:
        for number, block in enumerate(blocks(page, 'python', 'py')):
            base = re.search(r"^_base_ = (?:'([\w.]+)'|.)", block, re.MULTILINE)
            if base and (base[1] is None or our_config(base[1])):
                yield pytest.param(block, id=f'{page_ids(page)}-{number}')


@pytest.mark.parametrize('block', configs())
def test_configs_of_pages_load(block, tmp_path, monkeypatch):
    for name in re.findall(r"'(my_\w+)'", block):  # which another block of the page writes
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for folder in ('configs', 'docs'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    config = tmp_path / 'config.py'
    beside = re.search(r"^_base_ = '([\w.]+\.py)'", block, re.MULTILINE)
    if beside:  # it is to be written beside one of ours
        block = block.replace(beside[0], f"_base_ = '{our_config(beside[1])}'", 1)
    config.write_text(block, encoding='utf-8')
    assert load_config(str(config)).model


@pytest.mark.parametrize('page', PAGES, ids=page_ids)
def test_extras_of_pages_are_there(page):
    setup = (ROOT / 'setup.py').read_text(encoding='utf-8')
    for extras in re.findall(r'pip install [^\n`]*\[([\w,]+)\]', page.read_text(encoding='utf-8')):
        for extra in extras.split(','):
            assert f"'{extra}': [" in setup
