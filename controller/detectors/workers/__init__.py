"""Faults of workers: how they ended, that they stand still, what their losses and steps say."""
