"""Test a checkpoint, or an ensemble of several predictions."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('test')
