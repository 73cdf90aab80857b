"""Alerts that the controller sends by itself, for those who have no Alertmanager."""
