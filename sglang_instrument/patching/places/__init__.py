"""Find where a table's statements lie in a trainer's source."""
