"""Which node gets which ranks of a job: what its groups send, how far that goes, and the order that sends least far."""
