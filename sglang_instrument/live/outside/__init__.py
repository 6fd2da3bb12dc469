"""See from outside what a process does that cannot speak."""
