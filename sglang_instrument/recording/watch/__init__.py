"""Watch from beside: spans that do not end, event loops that are held, the GPU."""
