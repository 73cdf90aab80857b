"""Decisive checks of optimizers that are more than a rule for each element."""
