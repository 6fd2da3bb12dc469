"""Watch open spans that do not end, event loops that are blocked, and the GPU's time."""
