"""Declare tables of a run that runs: its workers, its oldest requests, its last steps."""
