"""Print the tables of `summary`: steps, workers, their ledgers, periods, and runs read in pieces."""
