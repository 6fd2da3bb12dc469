"""Sum the spans of files up into the tables that most answers need, and keep these tables."""
