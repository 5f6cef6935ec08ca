"""``command-line``: a tool's arguments, out of its parser, when the site is built."""

from __future__ import annotations

import argparse
import inspect
import re

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.parsers.rst.states import RSTState
from docutils.statemachine import StringList
from sphinx.util.nodes import nested_parse_with_titles
from tool_parsers import ROOT, parser_of


def reference(parser: argparse.ArgumentParser) -> str:
    """Return a parser's description, groups and arguments as reST, each option a target."""
    formatter = parser._get_formatter()
    usage = ' '.join(parser.format_usage().split()).removeprefix('usage: ')
    lines = [
        _text(parser.description or ''),
        f'::\n\n   {usage}',
        f'.. program:: {parser.prog}',
    ]
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if a.help is not argparse.SUPPRESS]
        actions = [a for a in actions if not isinstance(a, argparse._HelpAction)]
        if actions:
            lines.append(f'.. rubric:: {(group.title or "").capitalize()}')
            lines.append(_text(group.description or ''))
            lines += [_option(action, formatter) for action in actions]
    if parser.epilog:
        lines.append('::\n\n' + _indented(inspect.cleandoc(parser.epilog)))
    return '\n\n'.join(line for line in lines if line)


def _option(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    if action.option_strings:
        value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
        names = ', '.join(f'{name} {value}'.strip() for name in action.option_strings)
    else:
        names = formatter._format_args(
            action, formatter._get_default_metavar_for_positional(action)
        )
    text = formatter._expand_help(action) if action.help else ''
    return f'.. option:: {names}\n\n{_indented(_text(text))}'


def _text(text: str) -> str:
    """Return plain text as reST: what looks like code is code, nothing else has a meaning."""
    text = re.sub(r'([*|\\])', r'\\\1', text)
    return re.sub(r'(?<![\w`-])(--[\w-]+)', r'``\1``', text)


def _indented(text: str) -> str:
    return '\n'.join(f'   {line}'.rstrip() for line in text.splitlines())


class CommandLine(Directive):
    """The arguments of one tool, such as ``tools/train.py``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        if not isinstance(self.state, RSTState):
            raise self.error('command-line writes reST: a page in Markdown needs {eval-rst}')
        tool = self.arguments[0]
        self.state.document.settings.env.note_dependency(str(ROOT / tool))
        node = nodes.container()
        content = StringList(reference(parser_of(tool)).splitlines(), source=tool)
        nested_parse_with_titles(self.state, content, node)
        return node.children


def setup(app) -> dict:
    app.add_directive('command-line', CommandLine)
    return {'parallel_read_safe': True}
