"""Say what the traces of the engines' profilers show."""
