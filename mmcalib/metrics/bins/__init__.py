"""Mergeable bins of confidences, and the figures computed from them."""
