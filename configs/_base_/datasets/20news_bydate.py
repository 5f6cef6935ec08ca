# 20 Newsgroups with the standard split by date: 7,532 later posts test, 900 of the earlier 11,314
# validate. Not the paper's: its figures cannot stand beside published ones.
_base_ = './20news.py'

train_dataloader = dict(dataset=dict(protocol='bydate'))
val_dataloader = dict(dataset=dict(protocol='bydate'))
test_dataloader = dict(dataset=dict(protocol='bydate'))
