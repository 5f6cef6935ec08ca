"""The argument parser of each tool, out of the tool itself."""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
from functools import cache
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]


class _Caught(Exception):
    """The parser with which a tool is about to parse its command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _catch(parser: argparse.ArgumentParser, *args, **kwargs):
    raise _Caught(parser)


@cache
def parser_of(tool: str) -> argparse.ArgumentParser:
    """Return the parser of a Python tool, which runs until it would parse.

    Args:
        tool: Its path in the repository.

    Raises:
        RuntimeError: If the tool ends without parsing.
    """
    path = ROOT / tool
    parse = mock.patch.object(argparse.ArgumentParser, 'parse_known_args', _catch)
    argv = mock.patch.object(sys, 'argv', [path.name])
    beside = mock.patch.object(sys, 'path', [str(path.parent), *sys.path])
    with parse, argv, beside, contextlib.suppress(SystemExit):
        try:
            runpy.run_path(str(path), run_name='__main__')
        except _Caught as caught:
            return caught.parser
    raise RuntimeError(f'{tool} parses no command line')
