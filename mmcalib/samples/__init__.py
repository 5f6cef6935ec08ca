"""Data samples of mmpretrain and mmseg, as dicts or elements: what is read and put there."""

OOD_GROUPS = ('near', 'far')  # of sets, in the metainfo of a data set that has any
