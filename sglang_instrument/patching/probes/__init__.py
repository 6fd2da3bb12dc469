"""Measure inside rewritten code: the probes, and the fields that they read."""
