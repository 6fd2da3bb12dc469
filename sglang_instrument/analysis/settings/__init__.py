"""What the engine, the trainer and the machine were set to: read from `processes/`, and compared."""
