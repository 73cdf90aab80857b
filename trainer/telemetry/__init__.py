"""Where the time of a step goes, measured while it runs."""
