"""The command line of the tools: parsing, help and the console command.

Nothing here imports torch or mmengine, whose import takes seconds: a help or a mistyped option is
answered at once.
"""
