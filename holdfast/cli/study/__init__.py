"""Commands that repeat the controller's decisions, or run them in a simulated cluster."""
