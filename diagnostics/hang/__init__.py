"""Who waits for whom when nothing moves, and what a worker does that makes no step."""
