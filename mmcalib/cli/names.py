"""Names and defaults that a help lists; a test compares them with what the package has."""

METHODS = (
    'temperature',
    'vector',
    'matrix',
    'ets',
    'isotonic',
    'platt',
    'beta',
    'class-temperatures',
    'class-conditional',
)
CRITERIA = ('nll', 'ece-grid')
NUM_SAMPLES = 200_000
PROTOCOLS = ('boundary', 'foreground', 'image', 'paper', 'pooled')
CORRUPTION_GROUPS = {
    'noise': ('gaussian_noise', 'shot_noise', 'impulse_noise'),
    'blur': ('defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur'),
    'weather': ('snow', 'frost', 'fog', 'brightness'),
    'digital': ('contrast', 'elastic_transform', 'pixelate', 'jpeg_compression'),
    'holdout': ('speckle_noise', 'gaussian_blur', 'spatter', 'saturate'),
}
SEVERITIES = (1, 2, 3, 4, 5)
ROBUSTNESS_FIGURES = ('boxes', 'lines', 'sheet')
LITE_VARIANTS = (0, 1, 2)
# Of the shipped configs.
EVALUATIONS = ('paper', 'regions', 'mmseg', 'unseen')
