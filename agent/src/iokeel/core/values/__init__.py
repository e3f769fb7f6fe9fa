"""The values of the control law: what it reads, remembers, promises and orders."""
