"""Follow a run while it runs, from a process outside training."""
