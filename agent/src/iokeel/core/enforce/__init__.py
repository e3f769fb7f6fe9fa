"""Stage 4: which limits hold a drive to what it may do, and when are they set anew?"""
