"""The command line: the only part that imports all others."""
