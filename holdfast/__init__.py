"""Holdfast: keeps a large LLM training job alive and tells why it is slow."""

__version__ = "0.1.0"
