"""Put probes into the functions of this process, and remove them again."""
