"""Names and defaults that a help lists; a test compares them with what the package has."""

METHODS = (
    *('temperature', 'vector', 'matrix', 'ets', 'isotonic', 'platt', 'beta'),
    *('class-temperatures', 'class-conditional'),
)
CRITERIA = ('nll', 'ece-grid')
NUM_SAMPLES = 200_000
PROTOCOLS = ('boundary', 'foreground', 'image', 'paper', 'pooled')
ROBUSTNESS_FIGURES = ('boxes', 'lines')
LITE_VARIANTS = (0, 1, 2)
# Of the shipped configs.
EVALUATIONS = ('paper', 'regions', 'mmseg', 'unseen')
