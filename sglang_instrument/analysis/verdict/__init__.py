"""Say what was wrong with a run, if anything was, and on what evidence."""
