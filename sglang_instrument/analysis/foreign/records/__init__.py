"""What readers make of a log of another project: rows as our own records have them, and stretches of work."""
