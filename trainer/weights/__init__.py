"""Weights in and out: checkpoints, Hugging Face folders, samples of text."""
