"""Rows of the network: switches and paths, congestion, timeouts."""
