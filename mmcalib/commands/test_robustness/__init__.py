"""Tests on corrupted images and on other data sets."""
