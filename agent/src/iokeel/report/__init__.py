"""The agent's state, as the API, the metrics and the command show it."""
