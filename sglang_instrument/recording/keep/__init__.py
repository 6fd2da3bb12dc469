"""Encode finished spans on one thread, and write them to files on another."""
