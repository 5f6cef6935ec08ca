"""Take the argument parser of a tool out of the tool itself."""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
from functools import cache
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]


class _ParserCaught(Exception):
    """Interruption of a tool by the parser with which it is about to parse its command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _raise_parser(parser: argparse.ArgumentParser, *args, **kwargs):
    raise _ParserCaught(parser)


@cache
def parser_of(tool: str) -> argparse.ArgumentParser:
    """Return the parser of a Python tool, which runs until it would parse.

    Args:
        tool: Path of the tool in the repository.

    Raises:
        RuntimeError: If the tool ends without parsing.
    """
    path = ROOT / tool
    parse = mock.patch.object(argparse.ArgumentParser, 'parse_known_args', _raise_parser)
    arguments = mock.patch.object(sys, 'argv', [path.name])
    import_path = mock.patch.object(sys, 'path', [str(path.parent), *sys.path])
    with parse, arguments, import_path, contextlib.suppress(SystemExit):
        try:
            runpy.run_path(str(path), run_name='__main__')
        except _ParserCaught as caught:
            return caught.parser
    raise RuntimeError(f'{tool} parses no command line')
