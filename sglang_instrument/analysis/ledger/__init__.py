"""Share out the time of steps: who decided how long they took, on what, and what the engine usually takes."""
