"""Options of commands: frozen dataclasses whose fields make the parsers of the command lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from types import NoneType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError

# The default of an option that a command line must give.
REQUIRED: Any = MISSING


def option(
    help: str,
    default: Any = None,
    *,
    group: str | None = None,
    before: str | None = None,
    last: bool = False,
    **argument,
) -> Any:
    """Return a field that is an option of the command line, of the same name.

    Its type says what the option takes: ``int`` or ``float`` a number, ``Sequence`` several values,
    ``bool`` none. One that is True by default has the name ``--no-…``.

    Args:
        help: The text of the help.
        default: The default; :data:`REQUIRED` for none.
        group: Title of the group that begins with this option, with a description behind a colon,
            if it has one; empty to end a group.
        before: Name of the option before which it stands in the help, in place of its own place.
        last: Whether it stands behind the options of subclasses.
        argument: More keywords of :meth:`argparse.ArgumentParser.add_argument`.
    """
    return field(
        default=default,
        metadata={
            'argument': {'help': help, **argument},
            'group': group,
            'before': before,
            'last': last,
        },
    )


def positional(help: str, default: Any = REQUIRED, **argument) -> Any:
    """Return a field that is an argument without a name; see :func:`option`."""
    return field(default=default, metadata={'argument': {'help': help, **argument}})


class Options:
    """Base of the options of a command; the docstring of the module is the help of the command.

    Attributes:
        examples: Arguments of example calls, for the end of the help.
        runs: Whether the command runs a model, for which it needs mmengine.
        stopped: Line after an interruption; it may say how to go on.
    """

    examples: ClassVar[Sequence[str]] = ()
    runs: ClassVar[bool] = True
    stopped: ClassVar[str] = 'Stopped.'

    @classmethod
    def build_parser(cls) -> ToolParser:
        """Return the parser of the command line."""
        parser = ToolParser(
            description=sys.modules[cls.__module__].__doc__,
            examples=cls.examples,
            runs=cls.runs,
            stopped=cls.stopped,
        )
        cls.add_arguments(parser)
        return parser

    @classmethod
    def add_arguments(cls, parser: ToolParser) -> None:
        """Give a parser the arguments of the fields."""
        types = get_type_hints(cls)
        group = parser
        for item in _fields_in_order(cls):
            argument = _argument(item, types[item.name])
            if 'group' not in item.metadata:
                parser.add_argument(item.name, **argument)
                continue
            title = item.metadata['group']
            if title is not None:
                name, _, description = title.partition(': ')
                group = parser.add_argument_group(name, description or None) if name else parser
            flag = item.name.replace('_', '-')
            if item.default is True:
                flag = f'no-{flag}'
            group.add_argument(f'--{flag}', dest=item.name, **argument)

    @classmethod
    def parse(cls, parser: ToolParser, arguments: Sequence[str]) -> Options:
        """Return the options on a command line.

        Arguments without a name may come after options too, as in ``tools/dist_test.sh``.
        """
        values = vars(parser.parse_intermixed_args(arguments))
        try:
            return cls.from_values(values)
        except UserError as error:
            parser.error(str(error))

    @classmethod
    def from_values(cls, values: dict) -> Options:
        """Return the options of the values on a command line.

        Raises:
            UserError: If the values do not fit together.
        """
        return cls(**values)


def _fields_in_order(options: type) -> list[Field]:
    """Return the fields that are arguments, as the help shows them."""
    arguments = [item for item in fields(options) if 'argument' in item.metadata]
    arguments.sort(key=lambda item: item.metadata.get('last', False))
    for item in list(arguments):
        name = item.metadata.get('before')
        if name is not None:
            arguments.remove(item)
            names = [other.name for other in arguments]
            arguments.insert(names.index(name), item)
    return arguments


def _argument(item: Field, annotation: Any) -> Mapping[str, Any]:
    """Return the keywords of ``add_argument`` for a field."""
    argument = dict(item.metadata['argument'])
    is_option = 'group' in item.metadata
    if item.default is MISSING:
        if is_option:
            argument['required'] = True
    else:
        argument['default'] = item.default
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    kind = kinds[0] if NoneType in get_args(annotation) else annotation
    if kind is bool:
        return {'action': 'store_false' if item.default else 'store_true', **argument}
    if get_origin(kind) is Sequence:
        (kind,) = get_args(kind)
        if 'action' not in argument:
            argument.setdefault('nargs', '+')
    if kind in (int, float):
        argument['type'] = kind
    return argument
