"""Test checkpoints on corrupted images, and on other data sets with the same classes."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('robustness')
