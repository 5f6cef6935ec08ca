"""Predictions of images without labels."""
