"""Calibration of a trained model: logits, fit, proof, new checkpoint."""
