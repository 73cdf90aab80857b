"""The network of a cluster in simulated time: switches, paths, congestion, timeouts."""
