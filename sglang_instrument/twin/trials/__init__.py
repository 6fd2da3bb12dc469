"""Hold a twin against its record, and measure settings on it."""
