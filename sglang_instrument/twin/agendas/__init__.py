"""Make agendas from logs: what each request asked of the engine, and when."""
