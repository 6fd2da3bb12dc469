"""Change the code of the program under measurement in memory, and restore it exactly."""
