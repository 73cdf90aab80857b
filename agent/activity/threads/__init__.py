"""Facts of a proof, read from outside: the state of each thread of a standing worker, and who holds a worker."""
