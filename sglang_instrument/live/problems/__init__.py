"""Find what goes wrong right now."""
