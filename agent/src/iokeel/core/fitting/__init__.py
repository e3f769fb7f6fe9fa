"""What does a storage serve?"""
