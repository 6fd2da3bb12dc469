"""Declare the tables: a file says once what the columns of a table are, and how it is made from a run."""
