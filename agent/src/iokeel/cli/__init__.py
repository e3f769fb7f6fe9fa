"""The command `iokeel`."""
