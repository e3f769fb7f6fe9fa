"""Policy by rule: what a platform says of a guest decides what the guest is promised."""
