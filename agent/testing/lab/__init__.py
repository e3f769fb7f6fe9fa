"""Real hypervisors and guests on one machine, for the demo, the system tests and the benchmarks."""
