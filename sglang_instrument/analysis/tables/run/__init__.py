"""Declare tables of a run as a whole: its spans, their fields, its processes, its findings."""
