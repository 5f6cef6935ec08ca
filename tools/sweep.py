"""Choose a parameter of the loss on validation data."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('sweep')
