"""Spans in files, for later readers."""
