"""Losses of upsampled logits, computed tile by tile."""
