"""The command line of the tools: parsing, help and "did you mean".

Nothing here imports torch, mmengine or mmcalib, whose import takes seconds: a help or a mistyped
option is answered at once.
"""
