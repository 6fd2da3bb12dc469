"""Tell which span ran inside which, and what a second was spent on."""
