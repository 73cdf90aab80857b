"""The trainer's settings, what must be true of them, and what a launcher adds."""
