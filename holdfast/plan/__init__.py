"""A job's pipeline plan as data: its invariants, and how long it takes."""
