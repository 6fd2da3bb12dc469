"""Read what a patch table says: regions, events, and the language of their fields."""
