"""From a checkpoint or from memory back to state, on any layout, each byte read once and verified."""
