"""Who gets what of a storage?"""
