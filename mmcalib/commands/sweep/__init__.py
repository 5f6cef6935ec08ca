"""The command ``sweep``: a parameter of the loss, chosen on validation data."""
