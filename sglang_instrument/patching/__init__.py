"""Patch the code of the measured program in memory, and restore it exactly."""
