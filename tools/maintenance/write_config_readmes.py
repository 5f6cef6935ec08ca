"""Bring the READMEs and metafiles of the configs in line with the configs and docs/results."""

import argparse
from pathlib import Path

from config_readmes import Experiment, with_models, with_results
from quoted_numbers import read_measured

from mmcalib.runs.config import load_config
from mmcalib.runs.loss_config import main_loss
from mmcalib.work_dir import whole_file

ROOT = Path(__file__).resolve().parents[2]


def experiments_of(folder: Path) -> list[Experiment]:
    """Return the configs of a folder, by name."""
    found = []
    for path in sorted(folder.glob('*.py'), key=lambda path: path.stem):
        cfg = load_config(str(path))
        found.append(Experiment(path.stem, cfg.default_scope, main_loss(cfg)))
    return found


def pages_of(folder: Path, measured: dict) -> dict[Path, str]:
    """Return the pages that a folder of configs is to have."""
    experiments = experiments_of(folder)
    readme, metafile = folder / 'README.md', folder / 'metafile.yml'
    return {
        readme: with_results(readme.read_text('utf-8'), experiments, measured),
        metafile: with_models(metafile.read_text('utf-8'), folder.name, experiments, measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--configs', type=Path, default=ROOT / 'configs')
    args = parser.parse_args()
    measured = read_measured(ROOT / 'docs/results')
    for path in sorted(args.configs.glob('*/metafile.yml')):
        try:
            pages = pages_of(path.parent, measured)
        except (FileNotFoundError, ValueError) as error:
            parser.error(f'{path.parent}: {error}')
        for page, text in pages.items():
            if page.read_text('utf-8') != text:
                with whole_file(page) as temporary:
                    temporary.write_text(text, encoding='utf-8')
                print(page)


if __name__ == '__main__':
    main()
