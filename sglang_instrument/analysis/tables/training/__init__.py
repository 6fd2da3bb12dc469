"""Declare tables of the training around the rollout: its loop, its samples, its weights."""
