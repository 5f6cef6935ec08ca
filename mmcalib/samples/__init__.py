"""Data samples of mmpretrain and mmseg, as dicts or elements: what is read and put there."""
