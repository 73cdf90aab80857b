"""A whole cluster on this machine, as child processes."""
