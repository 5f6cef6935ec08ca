"""Bring docs/reference/config_keys.md in line with signatures and docstrings."""

import argparse
from pathlib import Path

from config_keys import page

import mmcalib  # noqa: F401
from mmcalib.work_dir import whole_file

PAGE = Path(__file__).resolve().parents[2] / 'docs/reference/config_keys.md'


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    text = page()
    if not PAGE.is_file() or PAGE.read_text('utf-8') != text:
        with whole_file(PAGE) as path:
            path.write_text(text, encoding='utf-8')
        print(PAGE)


if __name__ == '__main__':
    main()
