"""How a job ends whose ranks leave at different times, and what becomes of workers that do not end."""
