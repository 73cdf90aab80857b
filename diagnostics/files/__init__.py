"""Spans in files, for whoever reads them later."""
