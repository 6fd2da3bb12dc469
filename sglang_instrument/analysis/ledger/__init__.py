"""Share out the time of steps: which worker decided how long they took, on what, and how fast engines are."""
