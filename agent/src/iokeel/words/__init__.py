"""Sizes, rates and names as people write and read them."""
