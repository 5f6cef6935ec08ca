"""The console command ``mmcalib``: every tool of the folder tools/ as a subcommand."""

from __future__ import annotations

import ast
import runpy
import sys

from mmcalib import __version__
from mmcalib.cli.files import package_folder
from mmcalib.errors import did_you_mean

USAGE = 'usage: mmcalib COMMAND …'
SHORT = {'test-robustness': 'robustness'}


def main() -> None:
    """Run a subcommand as ``python tools/NAME.py`` does."""
    paths = sorted(package_folder('mmcalib', 'tools').glob('*.py'))
    names = [path.stem.replace('_', '-') for path in paths]
    tools = {SHORT.get(name, name): path for name, path in zip(names, paths, strict=True)}
    tools.pop('torchrun', None)  # which starts other tools
    given = sys.argv[1] if len(sys.argv) > 1 else ''
    name = given.replace('_', '-')
    name = SHORT.get(name, name)
    if name in tools:
        run = runpy.run_path(str(tools[name]))['main']
        sys.argv = [f'mmcalib {name}', *sys.argv[2:]]
        run()
    elif given == '--version':
        print(f'mmcalib {__version__}')
    elif given in ('', '-h', '--help', 'help'):
        print(f'{USAGE}\n\nTrain, measure and calibrate the confidence of mmpretrain and '
              'mmsegmentation models.\n\ncommands:')  # fmt: skip
        for name, path in tools.items():
            text = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
            print(f'  {name:<{max(map(len, tools))}}', ' '.join(text.split('\n\n')[0].split()))
        print('\nmmcalib COMMAND --help lists the options of a command.')
        sys.exit(0 if given else 2)
    else:
        print(f'{USAGE}\nmmcalib: error: no command {given!r}{did_you_mean(name, tools)}',
              file=sys.stderr)  # fmt: skip
        sys.exit(2)


if __name__ == '__main__':
    main()
