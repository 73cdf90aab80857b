"""A cluster that does not exist, around the brain that does: what breaks, what must hold, what comes of it."""
