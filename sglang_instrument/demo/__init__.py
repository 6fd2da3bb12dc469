"""Run a small real rollout on the real SGLang engine: the stand-in for a trainer."""
