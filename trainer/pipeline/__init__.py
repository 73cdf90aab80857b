"""A rank's stages, the plan of a step, and the executor that does it."""
