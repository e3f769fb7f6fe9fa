"""Do a drive's limits fit its workload?"""
