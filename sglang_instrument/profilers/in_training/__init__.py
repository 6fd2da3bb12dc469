"""Profile chosen steps and slow requests of a run, from inside the training processes."""
