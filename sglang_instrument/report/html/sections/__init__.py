"""Collect the words and rows of sections that a run has, or has not."""
