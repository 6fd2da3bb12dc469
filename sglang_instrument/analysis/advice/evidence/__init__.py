"""What levers rest on: the run that can be played again, its settings, pools, curves and cliffs."""
