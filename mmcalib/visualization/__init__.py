"""Figures out of statistics; no Runner, no hooks, and matplotlib only when one is drawn."""
