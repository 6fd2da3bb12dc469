"""Open the folder of a run: its files, its tables, and what they lack."""
