"""A rank's stages and the plan that runs them, on torch's pipelining runtime."""
