"""Hooks that watch an unmodified PyTorch script from within."""
