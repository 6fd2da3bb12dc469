"""Follow a run from outside while it runs: what its step does now, and when it will end."""
