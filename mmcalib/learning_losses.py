"""Which losses learn from the validations of their training, and by which hook."""

LEARNS_BY = {'CALSLoss': 'CALSHook', 'AdaFocalLoss': 'AdaFocalHook'}
