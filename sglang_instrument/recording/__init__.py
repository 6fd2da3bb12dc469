"""Measure and keep what happens inside a rollout, without the rollout noticing."""
