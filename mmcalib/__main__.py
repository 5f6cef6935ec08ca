"""The table of commands, and the way from a command line to a command.

The console command ``mmcalib NAME`` and the file ``tools/NAME.py`` both come here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import resolve_name
from typing import NamedTuple

from mmcalib.errors import did_you_mean
from mmcalib.version import __version__

USAGE = 'usage: mmcalib COMMAND …'


class Command(NamedTuple):
    """Where a command is found, as ``module:name``.

    Attributes:
        options: The dataclass of its options, whose module imports neither torch nor mmengine.
        function: The function that does it. It takes the options and returns the exit status, None
            for 0.
    """

    options: str
    function: str


COMMANDS = {
    'measure': Command(
        'mmcalib.cli.measure:MeasureOptions', 'mmcalib.commands.measure:measure_files'
    ),
    'compare': Command(
        'mmcalib.cli.compare:CompareOptions', 'mmcalib.commands.compare:compare_files'
    ),
    'calibrate': Command(
        'mmcalib.cli.calibrate:CalibrateOptions',
        'mmcalib.commands.calibrate.command:calibrate_model',
    ),
    'train': Command('mmcalib.cli.train:TrainOptions', 'mmcalib.commands.train:train_model'),
    'test': Command('mmcalib.cli.test:EvaluationOptions', 'mmcalib.commands.test:evaluate_model'),
    'robustness': Command(
        'mmcalib.cli.robustness:RobustnessOptions',
        'mmcalib.commands.robustness.command:run_robustness',
    ),
    'predict': Command(
        'mmcalib.cli.predict:PredictFolderOptions',
        'mmcalib.commands.predict.command:predict_folder',
    ),
    'sweep': Command(
        'mmcalib.cli.sweep:SweepOptions', 'mmcalib.commands.sweep.command:sweep_parameter'
    ),
    'export': Command(
        'mmcalib.cli.export:ExportOptions', 'mmcalib.commands.export.command:export_model'
    ),
    'report': Command('mmcalib.cli.report:ReportOptions', 'mmcalib.commands.report:report_runs'),
    'visualize': Command(
        'mmcalib.cli.visualize:VisualizeOptions', 'mmcalib.commands.visualize:visualize_runs'
    ),
    'convert-efficientnet-lite': Command(
        'mmcalib.cli.convert_efficientnet_lite:ConvertOptions',
        'mmcalib.commands.convert_efficientnet_lite:convert_weights',
    ),
}
OTHER_NAMES = {'test-robustness': 'robustness'}


def main(name: str | None = None) -> None:
    """Run a command, and exit with its status unless that is 0.

    Args:
        name: Name of the command, as a file of ``tools/`` gives it; None to take it from the
            command line, as the console command does.
    """
    if name is not None:
        exit_unless_zero(run_command(name, sys.argv[1:]))
        return
    word = sys.argv[1] if len(sys.argv) > 1 else ''
    name = word.replace('_', '-')
    name = OTHER_NAMES.get(name, name)
    if name in COMMANDS:
        sys.argv = [f'mmcalib {name}', *sys.argv[2:]]
        exit_unless_zero(run_command(name, sys.argv[1:]))
    elif word == '--version':
        print(f'mmcalib {__version__}')
    elif word in ('', '-h', '--help', 'help'):
        print(help_text())
        exit_unless_zero(0 if word else 2)
    else:
        near = did_you_mean(name, COMMANDS)
        print(f'{USAGE}\nmmcalib: error: no command {word!r}{near}', file=sys.stderr)
        sys.exit(2)


def exit_unless_zero(status: int) -> None:
    """End the process with a status; with 0 let it go on, as a caller in Python expects."""
    if status:
        sys.exit(status)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Parse a command line, do what it asks for, and return the exit status."""
    command = COMMANDS[name]
    options_class = resolve_name(command.options)
    parser = options_class.build_parser()
    options = options_class.parse(parser, arguments)
    with parser.ending_with_errors():
        function = resolve_name(command.function)  # takes seconds
        return function(options) or 0


def help_text() -> str:
    """Return the help of the console command, with the first paragraph of each command's own."""
    descriptions = {}
    for name, command in COMMANDS.items():
        module, _ = command.options.split(':')
        descriptions[name] = import_module(module).__doc__
    width = max(map(len, descriptions))
    lines = [
        USAGE,
        '',
        'Measure the confidence of any model by its predictions in files; train, test and',
        'calibrate models of mmpretrain and mmsegmentation.',
        '',
        'commands:',
    ]
    for name, description in descriptions.items():
        first_paragraph = ' '.join(description.split('\n\n')[0].split())
        lines.append(f'  {name:<{width}} {first_paragraph}')
    lines += ['', 'mmcalib COMMAND --help lists the options of a command.']
    return '\n'.join(lines)


if __name__ == '__main__':
    main()
