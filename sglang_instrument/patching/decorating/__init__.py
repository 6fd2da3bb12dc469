"""The decorator `instrument`: decorated functions run rewritten code while something is recorded."""
