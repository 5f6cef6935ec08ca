# Margin-based label smoothing on 20 Newsgroups with the global-pooling CNN; the paper chose
# m=6 on validation data.
_base_ = '../ce/gpool_cnn_20news.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
