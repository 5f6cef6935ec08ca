"""The command ``calibrate``: from a checkpoint and held-out data to a calibrated checkpoint."""
