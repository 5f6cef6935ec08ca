"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('calibrate')
