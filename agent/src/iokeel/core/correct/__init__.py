"""Stage 2: what can a storage serve, by its own evidence?"""
