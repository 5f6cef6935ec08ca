"""From a config to a finished run: training, testing, calibrating a checkpoint, sweeping."""
