"""Which layout of a job is best on a cluster, and what it costs: pure functions, no torch."""
