"""Answer a coding agent's questions about runs over the Model Context Protocol."""
