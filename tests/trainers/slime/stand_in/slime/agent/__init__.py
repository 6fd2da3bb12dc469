"""Stand-in for slime.agent."""
