"""A training process' side: its state as tensors, its snapshots, when to save, where to go on."""
