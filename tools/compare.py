"""Compare two models by their predictions in files, of the same images."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('compare')
