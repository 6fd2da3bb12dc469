"""Find the functions and statements of a table in a trainer's source."""
