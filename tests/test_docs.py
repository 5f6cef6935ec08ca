"""Pages, examples and figures of README and docs: their commands, blocks and numbers hold."""

import argparse
import ast
import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from commands import ROOT, call_here
from tool_parsers import parser_of

import mmcalib
from mmcalib.runs.config import load_config

PAGES = [
    *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'configs/README.md')),
    *sorted((*ROOT.glob('docs/*.md'), *ROOT.glob('docs/[!_]*/*.md'))),
]
TEXTS = {page: page.read_text(encoding='utf-8') for page in PAGES}
# To be written by whoever follows the steps of CONTRIBUTING.md.
EXAMPLES = {'configs/my/digits.py', 'docs/results/NAME.json', 'tools/TOOL.py'}
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


def blocks(page, *languages):
    return [block[3] for block in FENCE.finditer(TEXTS[page]) if block[2] in languages]


def test_examples_of_docstrings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attempted = 0
    for module in pkgutil.walk_packages(mmcalib.__path__, 'mmcalib.'):
        if not module.name.endswith('__main__'):
            names = {'torch': torch}
            found = doctest.testmod(importlib.import_module(module.name), extraglobs=names)
            assert not found.failed, module.name
            attempted += found.attempted
    assert attempted > 30


EXECUTED = (
    'concepts/estimators', 'faq', 'howto/match_other_tools', 'howto/measure', 'coming_from/netcal',
    'coming_from/torchmetrics', 'coming_from/timm_and_torchvision',
)  # fmt: skip


@pytest.mark.parametrize('name', EXECUTED)
def test_examples_of_a_page_run_one_after_the_other(name, capsys):
    page, scope = ROOT / f'docs/{name}.md', {}
    if torch.__version__ < '2.7' and 'manual_seed' in TEXTS[page]:
        pytest.skip('its random numbers are those of newer PyTorch')
    configs = re.compile(r'^\w+_evaluator = |^dict', re.MULTILINE)
    for block in (block for block in blocks(page, 'python') if not configs.search(block)):
        exec(block, scope)
    assert scope
    claimed = re.search(r'^prints (.+) and (.+) %\.', TEXTS[page], re.MULTILINE)
    if claimed:
        printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
        assert printed == [*claimed[1].split(', '), claimed[2]]


def test_numbers_of_pages_are_those_that_were_measured(tmp_path, monkeypatch, capsys):
    """If not: python tools/maintenance/quote_results.py."""
    tool = 'maintenance/quote_results.py'
    page = tmp_path / 'page.md'
    right = next(line for line in TEXTS[ROOT / 'README.md'].split('\n') if ': CE -->' in line)
    wrong = re.sub(r'\d+\.\d+ ± \d+\.\d+', '1.00 ± 9.99', right)
    head = '| trained with | top-1 (%) | ECE (%) | AECE (%) |\n|---|--:|--:|--:|\n'
    for text, arguments, code, left in (
        (None, ['--check'], 0, None),
        (wrong, [page, '--check'], 1, wrong),
        (wrong, [page], 0, right),
        (wrong.replace('CE -->', 'no such -->'), [page], 2, None),
        (re.sub('<!--.*-->', '', wrong), [page], 2, None),
    ):
        page.write_text(head + (text or ''))
        with pytest.raises(SystemExit) as end:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        assert end.value.code == code, capsys.readouterr()
        assert left is None or page.read_text() == head + left


def commands(page):
    """The commands of a page, each as a list of words, and whether it is whole."""
    for block in blocks(page, 'bash', 'sh', 'shell', 'console'):
        lines = re.sub(r'\\\n', ' ', block).splitlines()
        for words in (words_of(line.strip().removeprefix('$ ')) for line in lines):
            yield from ((command, True) for command in parts(words))
    for inline in INLINE.findall(TEXTS[page]):
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


class _Refused(Exception):
    pass


def _refuse(parser, message):
    raise _Refused(message)


def problem(tool, arguments, *, whole):
    """What a tool's parser has against arguments; None if it takes them."""
    if not (ROOT / tool).is_file():  # a text may begin with the name of the package
        return f'there is no {tool}' if whole and tool not in EXAMPLES else None
    if not tool.endswith('.py'):
        return None
    parser = own = parser_of(tool)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            own = next((action.choices[word] for word in arguments if word in action.choices), own)
    for word in arguments:
        option = word.split('=')[0]
        if re.fullmatch(r'--[a-z][\w-]*', option) and option not in own._option_string_actions:
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


def test_commands_of_pages_have_their_arguments():
    wrong, tools = [], set()
    for page in PAGES:
        for command, whole in commands(page):
            known = tool_and_arguments(command)
            tools |= {known[0]} if known else set()
            if known and (said := problem(*known, whole=whole)):
                wrong.append(f'{page}: {" ".join(command)}: {said}')
    assert wrong == []
    assert {'tools/train.py', 'tools/test.py', 'tools/calibrate.py', 'tools/report.py'} <= tools


def test_the_text_of_the_command_lines_is_current():
    """If not: python docs/_ext/command_lines_text.py. Python versions wrap it in other ways."""
    text = (ROOT / 'docs/reference/command_lines.txt').read_text('utf-8')
    told = {part.split()[0]: ''.join(part.split()) for part in text.split('== ')[1:]}
    for tool, said in told.items():
        parsers = [parser_of(tool)]
        for parser in parsers:
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                meant = parser._get_formatter()._expand_help(action) if action.help else ''
                for words in (*action.option_strings, meant):
                    assert ''.join(words.split()) in said, (tool, words)
    assert len(told) == 10


def test_that_the_test_above_finds_mistakes():
    for tool, arguments in (('train', ['config.py', '--ressume']), ('train', []), ('nothing', [])):
        assert problem(f'tools/{tool}.py', arguments, whole=True)
    words = words_of('A=1 python tools/dist_train.sh c.py 4 --amp && ls # so')
    found = [tool_and_arguments(command) for command in parts(words)]
    assert found == [('tools/train.py', ['c.py', '--amp']), None]


def test_blocks_of_pages_can_be_read():
    bash = '\n'.join(block for page in PAGES for block in blocks(page, 'bash', 'sh', 'shell'))
    checked = subprocess.run(['bash', '-n'], input=bash, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    for page in PAGES:
        for block in blocks(page, 'python', 'py'):
            examples = doctest.DocTestParser().get_examples(block)
            for source in [example.source for example in examples] or [block]:
                ast.parse(source, filename=str(page))


def our_config(name):
    return next(ROOT.glob(f'configs/*/{name}'), None)


def test_configs_of_pages_load(tmp_path, monkeypatch):
    """The blocks that are configs on a base, but for a file of the reader's own."""
    for folder in ('configs', 'docs'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    config, count = tmp_path / 'config.py', 0
    for block in (block for page in PAGES for block in blocks(page, 'python', 'py')):
        base = re.search(r"^_base_ = (?:'([\w.]+)'|.)", block, re.MULTILINE)
        if not base or not (base[1] is None or our_config(base[1])):
            continue
        for name in re.findall(r"'(my_\w+)'", block):  # which another block of the page writes
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        if base[1]:  # it is to be written beside one of ours
            block = block.replace(base[0], f"_base_ = '{our_config(base[1])}'", 1)
        config.write_text(block, encoding='utf-8')
        assert load_config(str(config)).model, block
        count += 1
    assert count >= 15


def test_what_pages_name_is_there():
    missing, declared = set(), (ROOT / 'pyproject.toml').read_text()
    for page, text in TEXTS.items():
        files = r'(?<![\w/.])(?:configs|tools|docs)/[\w./]+\.(?:py|sh|md|json|png)\b'
        paths = {ROOT / name for name in {*re.findall(files, text)} - EXAMPLES}
        links = re.findall(r'\]\(([^)#\s]+)', text)
        paths |= {page.parent / link for link in links if '://' not in link}
        missing |= {f'{page}: {path}' for path in paths if not path.exists()}
        extras = re.findall(r'pip install [^\n`]*\[([\w,]+)\]', text)
        named = {extra for several in extras for extra in several.split(',')}
        missing |= {extra for extra in named if f'\n{extra} = [' not in declared}
    quoted = re.findall(r'`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md))`', TEXTS[ROOT / 'CONTRIBUTING.md'])
    places = [
        ROOT / place
        for place in (
            '',
            'mmcalib',
            'mmcalib/tasks',
            'mmcalib/losses',
            'mmcalib/metrics',
            'tests',
            'tests/metrics',
            'configs/ls',
        )
    ]
    for name in {*quoted} - EXAMPLES - {'mmcalib/losses/my_loss.py'}:
        if not any((place / name).exists() for place in places):
            missing.add(f'CONTRIBUTING.md: {name}')
    assert missing == set()
    assert len(quoted) > 30
