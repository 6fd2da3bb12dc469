"""Play agendas against running servers."""
