"""Declare tables of two runs, and of a run under other rules."""
