"""The losses that learn from the validations of their training, and their hook."""

LEARNS_BY = {
    'CALSLoss': 'LearnFromValidationHook',
    'AdaFocalLoss': 'LearnFromValidationHook',
}
