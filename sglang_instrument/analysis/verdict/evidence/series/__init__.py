"""Series of numbers: the slope between them, and where to cut them in two."""
