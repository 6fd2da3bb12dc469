"""Detectors that look at the calls within requests, and explain their time."""
