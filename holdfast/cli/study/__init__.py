"""Commands that run the controller's decisions again, or in a cluster that does not exist."""
