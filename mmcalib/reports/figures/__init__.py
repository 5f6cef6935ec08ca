"""Figures of the laboratory: of tested runs, shifts and sweeps, and pictures of predictions."""
