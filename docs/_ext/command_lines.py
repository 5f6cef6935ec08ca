"""``command-line``: what ``--help`` of a tool prints, when the site is built."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from docutils import nodes
from docutils.parsers.rst import Directive
from tool_parsers import ROOT, parser_of


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and that of each of its commands."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (command.format_help() for command in action.choices.values())


class CommandLine(Directive):
    """The help of one tool, such as ``tools/train.py``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        tool = self.arguments[0]
        self.state.document.settings.env.note_dependency(str(ROOT / tool))
        os.environ['COLUMNS'] = '100'  # by which argparse breaks lines
        return [nodes.literal_block(text, text, language='text') for text in helps(parser_of(tool))]


def setup(app) -> dict:
    app.add_directive('command-line', CommandLine)
    return {'parallel_read_safe': True}
