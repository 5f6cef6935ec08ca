"""Convert the ImageNet weights of EfficientNet-Lite for the configs."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('convert-efficientnet-lite')
