"""What the agent sees from outside of a worker that makes no move."""
