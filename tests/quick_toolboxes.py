"""Imported for its effect: runs of the toolboxes take half of their time in short tests."""

from yapf.yapflib import yapf_api

# mmengine formats the text of a config for each file and log that holds it, a third of a short run.
# It takes this name when it is imported itself.
yapf_api.FormatCode = lambda text, **style: (text, False)
