"""The console command ``mmcalib``: every tool of the folder tools/ as a subcommand."""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mmcalib.checks import did_you_mean
from mmcalib.cli.files import package_folder

# torchrun.py starts other tools.
NO_COMMANDS = ('torchrun',)
SHORT = {'test_robustness': 'robustness'}
USAGE = 'usage: mmcalib COMMAND …'


def commands() -> dict[str, Path]:
    """Return the tools by their subcommands."""
    folder = package_folder('mmcalib', 'tools')
    paths = [path for path in sorted(folder.glob('*.py')) if path.stem not in NO_COMMANDS]
    return {SHORT.get(path.stem, path.stem.replace('_', '-')): path for path in paths}


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a tool's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
    return ' '.join(text.partition('\n\n')[0].split())


def help_text(tools: dict[str, Path]) -> str:
    """Return the help of the command."""
    width = max(map(len, tools))
    lines = [f'  {name:<{width}}  {first_sentence(path)}' for name, path in tools.items()]
    return '\n'.join(
        [
            USAGE,
            '',
            'Train, measure and calibrate the confidence of mmpretrain and mmsegmentation models.',
            '',
            'commands:',
            *lines,
            '',
            'mmcalib COMMAND --help lists the options of a command.',
        ]
    )


def main() -> None:
    """Run a subcommand as ``python tools/NAME.py`` does."""
    tools = commands()
    if len(sys.argv) < 2 or sys.argv[1] in ('-h', '--help', 'help'):
        print(help_text(tools))
        sys.exit(0 if len(sys.argv) > 1 else 2)
    if sys.argv[1] == '--version':
        from mmcalib import __version__

        print(f'mmcalib {__version__}')
        return
    name = SHORT.get(sys.argv[1], sys.argv[1].replace('_', '-'))
    if name not in tools:
        message = f'no command {sys.argv[1]!r}{did_you_mean(name, tools)}'
        print(f'{USAGE}\nmmcalib: error: {message}', file=sys.stderr)
        sys.exit(2)
    sys.argv = [f'mmcalib {name}', *sys.argv[2:]]
    spec = spec_from_file_location(tools[name].stem, tools[name])
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main()


if __name__ == '__main__':
    main()
