"""Metrics as functions of arrays: numpy or torch, no Runner, no config."""
