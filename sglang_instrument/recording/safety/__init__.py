"""Keep our failures from training, and say them once."""
