"""Judge tools by their names: which were slow, in which steps, and which were cut off by a limit."""
