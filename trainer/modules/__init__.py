"""Modules of the user's own: traced once and cut into pipeline stages, each a module that passes on what follows."""
