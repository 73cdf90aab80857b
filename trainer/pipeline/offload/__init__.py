"""Activations in host memory between a forward and its backward: which, when, and their way there and back."""
