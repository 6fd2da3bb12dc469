"""Forecast the end of the step in progress: pure functions of earlier steps and of the requests so far."""
