"""iokeel: keep every guest's disk on an even keel."""

__version__ = "0.2.0"
