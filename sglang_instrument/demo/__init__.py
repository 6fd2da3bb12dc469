"""Run a small real rollout on the real SGLang engine, as a trainer does."""
