"""Stand in for Miles: its names, signatures and order, in as few lines as its tables look at."""
