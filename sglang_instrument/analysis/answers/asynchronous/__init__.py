"""Answer what users of asynchronous trainers ask: which weights, how stale, what was thrown away."""
