"""What each thread of a standing worker does, and who holds a worker: the facts of a proof, read from outside."""
