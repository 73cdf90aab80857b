"""Alerts that the controller sends by itself, for sites without an Alertmanager."""
