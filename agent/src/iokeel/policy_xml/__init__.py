"""The policy in a domain's XML."""
