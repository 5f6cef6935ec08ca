"""The call contract of both toolboxes, value and gradient in one pass, compilation."""
