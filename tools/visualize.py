"""Draw figures of tested runs as PNG, PDF or SVG."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('visualize')
