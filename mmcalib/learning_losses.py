"""The losses that learn from the validations of their training, and their hooks."""

LEARNS_BY = {'CALSLoss': 'CALSHook', 'AdaFocalLoss': 'AdaFocalHook'}
