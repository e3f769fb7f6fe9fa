"""Stage 1: what do drives and storages do, and what would drives do?"""
