"""What the agent sees from outside of a worker at a standstill."""
