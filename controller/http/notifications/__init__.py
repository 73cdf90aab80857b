"""Notifications over HTTP: acknowledge, test, and the runbook that messages link to."""
