"""Measure the calibration of predictions in files, with no model, config or toolbox."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('measure')
