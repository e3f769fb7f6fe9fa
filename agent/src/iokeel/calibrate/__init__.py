"""The measurement of a storage."""
