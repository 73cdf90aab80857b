"""Holdfast: keeps a large LLM training job running and shows why it is slow."""

__version__ = "0.1.0"
