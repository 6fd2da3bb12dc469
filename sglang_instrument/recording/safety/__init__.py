"""Keep failures of this package away from training, and log each kind once."""
