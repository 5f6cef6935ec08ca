"""The calibration of a trained model: a scaling is fitted, measured, placed and proven."""
