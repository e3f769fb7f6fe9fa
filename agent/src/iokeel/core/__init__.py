"""The control law: pure functions over typed values."""
