"""The callers of a simulated world: conversations, tools, rewards, trainers."""
