"""Which worker waits for which when nothing moves, and what a worker does that makes no step."""
