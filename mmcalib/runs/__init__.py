"""From a config to a finished run: building, checking, training and testing."""
