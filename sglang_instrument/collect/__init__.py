"""Bring the files of a run from many nodes, or from object storage, into one folder."""
