# Explicit confidence penalty on 20 Newsgroups with the global-pooling CNN.
_base_ = '../ce/gpool_cnn_20news.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
