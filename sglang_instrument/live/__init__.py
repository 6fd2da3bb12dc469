"""Follow a run from outside while it runs; training imports nothing of this."""
