"""Collect tested runs into tables, and into a page with figures."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('report')
