"""Commands for daemons and their deployment."""
