"""Guests of a lab host, and what is done in them."""
