"""Encode finished spans on a thread, and write them to files on another."""
