# Cross-entropy on 20 Newsgroups with the global-pooling CNN.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/20news.py',
    '../_base_/schedules/20news.py',
]

# The data set, the network and the hook, which lie in configs/paper.
custom_imports = dict(imports=[
    'mmcalib',
    'mmcalib.paper.newsgroups',
    'mmcalib.paper.global_pooling_cnn',
    'mmcalib.paper.word_vectors_hook',
])

# The CNN reads frozen GloVe vectors. The published code keeps 1,999 words of all texts and counts
# the padding as the 2,000th; this vocabulary has 2,000 words of the training texts.
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
