"""What runs of weeks need: rows a day or a week, and dropping records while the answers stay."""
