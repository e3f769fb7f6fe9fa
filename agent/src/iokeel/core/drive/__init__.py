"""Do a drive's limits fit what it does?"""
