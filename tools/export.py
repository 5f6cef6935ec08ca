"""Export a model and its calibration to ONNX, and compare its probabilities with PyTorch's."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('export')
