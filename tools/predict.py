"""Predict images without labels: classes, confidences, and the accuracy to expect."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('predict')
