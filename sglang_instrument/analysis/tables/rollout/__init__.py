"""Declare tables of the rollout: its steps, workers, requests, turns and events."""
