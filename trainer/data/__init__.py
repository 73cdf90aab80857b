"""From text to batches: which tokens go into which step."""
