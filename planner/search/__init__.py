"""The best of all layouts of a model on a cluster, and why."""
