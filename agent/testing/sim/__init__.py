"""The agent's real control law against simulated guests, on a simulated clock."""
