"""Simulate the steps of a run: draw requests, queue them at engines, and write what workers would log."""
