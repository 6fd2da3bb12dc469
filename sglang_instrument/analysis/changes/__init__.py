"""What changed between two runs (`compare`), and what a change of the rules would do (`whatif`)."""
