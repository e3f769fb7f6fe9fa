"""Who may do how much of a budget that many hosts share?"""
