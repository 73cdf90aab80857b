"""Every check: its options, its results, and what its figures are compared with."""
