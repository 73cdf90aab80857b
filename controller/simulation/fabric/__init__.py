"""The network between simulated nodes: what each NIC carries and counts, by flows, and what goes wrong in it."""
