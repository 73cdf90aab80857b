"""Millisecond samples of byte counters."""
