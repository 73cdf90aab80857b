"""A job's pipeline plan as data: what must be true of it, and how long it takes."""
