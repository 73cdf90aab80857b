"""All ranks on one clock, for Perfetto and for the page."""
