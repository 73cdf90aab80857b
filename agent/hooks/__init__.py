"""What is watched of an unmodified PyTorch script, from within."""
