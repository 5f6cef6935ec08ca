"""Write ``docs/reference/command_lines.txt``, what ``--help`` of each tool prints.

Usage: ``python docs/_ext/command_lines_text.py``
"""

import argparse
import os
from collections.abc import Iterator

from tool_parsers import ROOT, parser_of

PAGE = ROOT / 'docs/reference/command_lines.md'


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and that of each of its commands."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (command.format_help() for command in action.choices.values())


def main() -> None:
    os.environ['COLUMNS'] = '100'  # by which argparse breaks lines
    heads = [line[3:] for line in PAGE.read_text('utf-8').splitlines() if line[:9] == '## tools/']
    parts = ('\n'.join([f'== {tool}', *helps(parser_of(tool))]) for tool in heads)
    PAGE.with_suffix('.txt').write_text('\n'.join([*parts, '==', '']), 'utf-8')


if __name__ == '__main__':
    main()
