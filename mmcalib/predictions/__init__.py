"""Predictions of models: read from arrays and loaders, their objects and boundaries."""
