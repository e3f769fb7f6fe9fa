"""What the agent keeps over its restarts."""
