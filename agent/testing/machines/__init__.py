"""Debian machines that boot, for tests that install on them."""
