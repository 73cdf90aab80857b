"""Faults that an agent shows by what it sends: silence, many at once, values that were left out."""
