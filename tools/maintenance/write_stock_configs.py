"""Write down which configs and models of mmseg and mmpretrain tools/calibrate.py takes.

No data and no weights are needed: images are divided by the configs alone, and each architecture
predicts one random image with random weights. It takes some ten minutes.
"""

import argparse
import json
from importlib.metadata import packages_distributions, version
from pathlib import Path

from stock_architectures import architectures, outcome
from stock_configs import RECORD, TOOLBOXES, divisions

from mmcalib.cli.parser import ToolParser
from mmcalib.work_dir import whole_file


def main() -> None:
    parser = ToolParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=RECORD)
    args = parser.parse_args()
    tables = [table for toolbox in TOOLBOXES for table in tables_of(toolbox)]
    with whole_file(args.out) as path:
        path.write_text(json.dumps(tables, indent=1) + '\n', encoding='utf-8')


def tables_of(toolbox: str) -> list[dict]:
    """Return two tables of a toolbox: how images are divided, and what is folded where."""
    found = divisions(toolbox)
    taken = sorted(config for (how, _), configs in found.items() if how for config in configs)
    (package,) = packages_distributions()[toolbox]
    head = {'toolbox': toolbox, 'package': f'{package} {version(package)}'}
    divided = [
        {
            'label': f'{toolbox}: {how or reason}',
            'division': how,
            'count': len(configs),
            # Of the largest part the number is enough: it has all others.
            'configs': configs if len(configs) < len(taken) // 2 else None,
        }
        for (how, reason), configs in found.items()
    ]
    folded = []
    for config, group in architectures(toolbox, taken).items():
        folded.append({'label': config, 'count': len(group), **outcome(toolbox, config)})
        print(folded[-1], flush=True)
    return [
        {'title': 'configs', **head, 'rows': divided},
        {'title': 'architectures', **head, 'rows': folded},
    ]


if __name__ == '__main__':
    main()
