"""Write ``docs/reference/command_lines.txt``, the text that ``--help`` of each tool prints.

Usage: ``python docs/_ext/command_lines_text.py``
"""

import argparse
import os
import re
from collections.abc import Iterator

from tool_parsers import ROOT, parser_of

PAGE = ROOT / 'docs/reference/command_lines.md'


def help_texts(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and that of each of its commands."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command.format_help()


def main() -> None:
    os.environ['COLUMNS'] = '100'  # argparse breaks lines at this width.
    tools = re.findall(r'^## (tools/.*)$', PAGE.read_text('utf-8'), re.MULTILINE)
    parts = ['\n'.join([f'== {tool}', *help_texts(parser_of(tool))]) for tool in tools]
    PAGE.with_suffix('.txt').write_text('\n'.join([*parts, '==', '']), 'utf-8')


if __name__ == '__main__':
    main()
