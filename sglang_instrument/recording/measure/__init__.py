"""Measure what training pays for at each event: spans, whose they are, how long a coroutine waited."""
