"""What the engine, the trainer and the machine are set to, for the description of this process."""
