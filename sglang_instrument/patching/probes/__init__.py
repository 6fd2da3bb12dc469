"""The probes in rewritten code, and the readers of their fields."""
