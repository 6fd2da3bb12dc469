"""Propose a first patch table for a class that no table knows, from its source."""
