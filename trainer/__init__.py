"""The embedded 3D-parallel LLM trainer."""
