"""Put probes into running functions, and take them out again."""
