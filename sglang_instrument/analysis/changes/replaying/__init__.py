"""A recorded rollout replayed: its requests, the engines, and the pools in which they wait for each other."""
