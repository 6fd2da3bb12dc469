"""Read the logs that other projects write: a format a file, all of them listed in `registry.py`."""
