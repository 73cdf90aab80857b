"""Modules of the user's own: traced once, cut into pipeline stages, each a module that passes on what is needed after it."""
