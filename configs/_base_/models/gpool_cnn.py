# Global-pooling CNN on frozen GloVe vectors, for texts.
# The published code keeps 1,999 words and counts the padding as the 2,000th, and takes them from
# all texts; these are 2,000 of the training texts.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='GlobalPoolingCNN', num_words=2000, vectors='data/glove/glove.6B.100d.txt'),
    head=dict(
        type='LinearClsHead',
        num_classes=20,
        in_channels=128,
        # PyTorch's initialisation, as in the published code.
        init_cfg=None,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))

custom_hooks = [dict(type='WordVectorsHook')]
