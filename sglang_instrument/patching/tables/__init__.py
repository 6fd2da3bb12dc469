"""Read patch tables: regions, their events, and the language of their fields."""
