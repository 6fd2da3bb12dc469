"""Measure what happens: spans, whose they are, how long a coroutine waited. What training pays for at each event."""
