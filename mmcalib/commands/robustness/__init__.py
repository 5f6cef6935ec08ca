"""The command ``robustness``: tests on corrupted images and on other data sets."""
