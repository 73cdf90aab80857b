"""What the kernel says of processes, their descriptors and their sockets."""
