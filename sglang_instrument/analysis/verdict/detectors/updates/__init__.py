"""Detectors that look at updates of the weights, and at what was made with older ones."""
