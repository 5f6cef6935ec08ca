"""Print a Markdown table of finished runs: mean and standard deviation over seeds."""

import argparse

from mmcalib import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folders', nargs='+', help='work dirs, or folders that hold some')
    args = parser.parse_args()
    try:
        print(report.markdown(report.collect(args.folders)))
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
