"""Train a model, then test its best checkpoint."""

from mmcalib.__main__ import main

if __name__ == '__main__':
    main('train')
