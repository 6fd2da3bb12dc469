"""Forecast a whole training: when its last step ends, if step times go on as they have."""
