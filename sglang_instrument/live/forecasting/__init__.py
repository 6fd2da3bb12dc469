"""Forecast the end of a step from earlier steps: pure functions of times."""
