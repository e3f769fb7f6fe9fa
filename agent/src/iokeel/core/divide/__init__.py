"""Stage 3: who gets what of a limit over several drives?"""
