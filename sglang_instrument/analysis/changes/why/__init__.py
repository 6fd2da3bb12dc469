"""Say why two runs differ: what changed, and which of their differences can carry it."""
