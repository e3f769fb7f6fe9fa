"""A whole OpenStack in one container, for tests of the agent beside it."""
