"""A sweep over a parameter of the loss, chosen on validation data."""
