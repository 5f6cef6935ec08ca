# Cross-entropy on 20 Newsgroups with the global-pooling CNN.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/20news.py',
    '../_base_/models/gpool_cnn.py',
    '../_base_/schedules/20news.py',
]
