"""Switch instrumentation on and off, and reach every process that a rollout starts."""
