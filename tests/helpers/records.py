"""Records as a test leaves them, for what reads them."""

SETTINGS = dict(data_preprocessor={}, test_cfg={}, network='0123456789abcdef')


def member(checkpoint='best.pth', **changes):
    """One of the networks of a model."""
    parts = dict(digest=None, seed=None, epoch=None, training=None, calibration=None)
    return dict(checkpoint=checkpoint, **parts, settings=SETTINGS) | changes


def model(*members, **changes):
    """A record's model; of one network alone unless told otherwise."""
    ensemble = dict(pipeline=[], views=[], mc_dropout=0, dropout_seed=None)
    parts = dict(members=list(members or [member()]), **ensemble, calibration=None)
    return dict(parts, temperature=None) | changes
