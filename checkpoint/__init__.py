"""Checkpoints: layout, stores, commit and restore."""
