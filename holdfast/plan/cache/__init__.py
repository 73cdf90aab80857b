"""A cache whose future is known: what is needed when, who leaves for it, and what that moves."""
